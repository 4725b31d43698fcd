"""What signals do to a daemon: end it politely, end it now, or make it read its files again."""

import signal
from collections.abc import Callable
from typing import Protocol

import trio


class Started(Protocol):
    """The part of ``trio.TaskStatus`` that is used here."""

    def started(self) -> None:
        """Says that signals are received from now on."""


async def handle_signals(
    *,
    stop: Callable[[], object],
    abort: Callable[[], object],
    hangup: Callable[[], object],
    task_status: Started = trio.TASK_STATUS_IGNORED,
) -> None:
    """Runs until cancelled or until the second order to end.

    The first SIGTERM or SIGINT calls ``stop``: give up the lead, end what can be ended well. The second calls
    ``abort``: cancel everything now. From then on signals have their default effect, so that a third one ends the
    process whatever it does. Each SIGHUP calls ``hangup``. The three must return at once.
    """
    endings = iter((stop, abort))
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as received:
        task_status.started()
        async for number in received:
            if number == signal.SIGHUP:
                hangup()
                continue
            ending = next(endings)
            ending()
            if ending is abort:
                return
