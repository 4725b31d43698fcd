"""A Python function in the place of the site's program, for programs that embed this one."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from inspect import isawaitable
from typing import Any

import trio

from provisioner.errors import HelperBadReply, HelperSilent, HelperTooMuch, HelperTooSlow
from provisioner.helper.child import MAX_STDOUT
from provisioner.helper.process import LIMIT, HelperRun
from provisioner.strictjson import dumps, loads

Answer = Mapping[str, Any] | None
Decide = Callable[[dict[str, Any]], Answer | Awaitable[Answer]]


class FunctionHelper:
    """Calls a function for each server. Give the object to ``serve`` as ``run_helper``; made by ``in_process``."""

    def __init__(self, decide: Decide) -> None:
        self._decide = decide

    async def __call__(  # the seam's arguments: a program needs more than a function does
        self,
        argv: Sequence[str],  # noqa: ARG002
        payload: bytes,
        *,
        identity: str = "",  # noqa: ARG002
        limit: float = LIMIT,
    ) -> HelperRun:
        """Asks the function about one server.

        Args:
            argv: not used.
            payload: what a program would read (``helper.contract.encode_input``).
            identity: not used; it is in the payload.
            limit: seconds for the answer of a function that awaits.

        Raises:
            HelperTooSlow: it had not answered at the limit.
            HelperSilent: it answered None.
            HelperBadReply: its answer can't be written as JSON.
            HelperTooMuch: its answer is more than ``MAX_STDOUT`` bytes as JSON.
        """
        begin = trio.current_time()
        with trio.move_on_after(limit) as clock:
            answer = self._decide(loads(payload))
            if isawaitable(answer):
                answer = await answer
        if clock.cancelled_caught:
            raise HelperTooSlow(f"the helper function had not answered after {limit:g} s")
        if answer is None:
            raise HelperSilent("the helper function answered None: zero bytes received")
        try:
            data = dumps(answer).encode()
        except (TypeError, ValueError, RecursionError) as error:
            problem = f"the helper function's answer can't be written as JSON: {type(error).__name__}"
            raise HelperBadReply(problem) from None
        if len(data) > MAX_STDOUT:
            raise HelperTooMuch(f"the helper function's answer is more than {MAX_STDOUT} bytes")
        return HelperRun(stdout=data, seconds=trio.current_time() - begin)


def in_process(decide: Decide) -> FunctionHelper:
    """Puts a Python function in the place of the site's program.

    Args:
        decide: given what a program reads, decoded (``inventory`` is still text), answers what a program writes. It may
            be an async function. One that isn't must not block: all servers wait meanwhile; give slow work to
            ``trio.to_thread.run_sync``. What it raises, other than ``HelperError``, is an ``internal_error`` of that
            server, with one traceback in the log.

    Returns:
        What ``serve`` takes as ``run_helper``.
    """
    return FunctionHelper(decide)
