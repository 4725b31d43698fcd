"""A task beside a ``with`` body: cancelled when the body ends, and the body's error comes out as it is."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio


@asynccontextmanager
async def beside(work: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Runs ``work`` while the context is open.

    What the body raises is raised again unchanged, not in the exception group that a nursery makes of it; the error of
    ``work`` cancels the body and comes out in its place.
    """
    failure: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            try:
                yield
            except trio.Cancelled:
                raise
            except BaseException as error:  # noqa: BLE001 - raised again below
                failure = error
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise single(group) from None
    if failure is not None:
        raise failure


def single(error: BaseException) -> BaseException:
    """What is inside of groups of one."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
