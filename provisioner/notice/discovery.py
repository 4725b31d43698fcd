"""Finds servers by asking: a broadcast at once, at each interval, and whenever somebody wants to know now."""

import logging
from collections.abc import Callable
from time import time

import trio

from provisioner.errors import BusError
from provisioner.metrics import Metrics
from provisioner.rpc import Caller

log = logging.getLogger(__name__)


class Discovery:
    """The ticker of one term.

    Args:
        caller: asks.
        begin: called as each sweep begins.
        found: given each identity that answered, unchecked, perhaps more than once.
        interval: gives the seconds from the start of one sweep to the start of the next.
        metrics: what is counted.
    """

    def __init__(
        self,
        caller: Caller,
        begin: Callable[[], None],
        found: Callable[[str], object],
        interval: Callable[[], float],
        metrics: Metrics,
    ) -> None:
        self._caller = caller
        self._begin = begin
        self._found = found
        self._interval = interval
        self._metrics = metrics
        self._now = trio.Event()

    def look_now(self) -> None:
        """Doesn't wait for the interval: the next sweep begins as soon as the present one, if any, has ended."""
        self._now.set()

    async def run(self) -> None:
        """Sweeps until cancelled. A sweep that fails is counted and told; the next one is as near as ever."""
        while True:
            self._now = trio.Event()
            next_sweep = trio.current_time() + self._interval()
            await self._sweep()
            with trio.move_on_at(next_sweep):
                await self._now.wait()

    async def _sweep(self) -> None:
        log.info("Looking for provisionable hosts")
        self._metrics.discover_cycles.inc()
        self._begin()
        try:
            await self._caller.discover(self._found, now=time())
        except BusError as error:
            self._metrics.discovery_errors.inc()
            log.error("Discovery failed: %s", error)  # noqa: TRY400 - the operator reads the message
