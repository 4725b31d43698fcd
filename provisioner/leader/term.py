"""One time during which this instance may act: a cancel scope with a deadline of our own (design 2).

The deadline is kept by ``CLOCK_BOOTTIME``, which goes on while the machine sleeps or the process is stopped: a leader
that wakes up after its time must not hand anything to the bus, even within the scheduler pass it was stopped in.
"""

import time
from collections.abc import Callable
from math import inf

import trio

from provisioner.errors import LostLead


def boottime() -> float:
    """Seconds since the machine started, suspension included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Term:
    """One term. Everything that acts runs inside ``scope``.

    Args:
        ends: when it ends unless it is extended, by ``clock``; infinite without an election.
        clock: seconds of a clock that never stops.
    """

    def __init__(self, ends: float = inf, *, clock: Callable[[], float] = boottime) -> None:
        self.scope = trio.CancelScope()
        self.ends = ends
        self.lost = False
        self._clock = clock

    def extend(self, ends: float) -> None:
        """A confirmed renewal moves the end. A term that was ended stays so."""
        self.ends = max(self.ends, ends)

    def end(self) -> None:
        """It is over: cancels everything inside."""
        self.lost = True
        self.scope.cancel()

    @property
    def over(self) -> bool:
        """Whether it has ended by our own clock, even if nobody has noticed yet: a stopped process wakes up so."""
        return self.lost or self._clock() >= self.ends

    def check(self) -> None:
        """Called before anything leaves this process.

        Raises:
            LostLead: the term is over.
        """
        if self.over:
            self.end()
            raise LostLead("this instance is no longer the leader")

    async def watch(self) -> None:
        """Ends the term when its time is up. Runs until then."""
        if self.ends == inf:
            return
        while (left := self.ends - self._clock()) > 0:  # noqa: ASYNC110 - the end is moved, and it is another clock
            # Short naps: the event loop's own clock stands still while the machine sleeps, this one doesn't.
            await trio.sleep(min(left, 1.0))
        self.end()
