"""One bucket held in memory by a watch, and never read when it may be old: fresh, or ``unavailable`` (mesh B5).

Before each reading the server is asked for the bucket's state: the watch must have told everything up to its last
sequence, and know as many keys as the server counts. The second catches what no watch is told of: a purge, or a value
that expired without a marker. Who asks waits a moment for the watch to get there, then hears ``unavailable``.
"""

import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import trio
from attrs import frozen

from provisioner.bus.keyvalue import KeyValue, Status
from provisioner.bus.watch import Begin, CaughtUp, Entry, Event, Lost, Watch
from provisioner.errors import BusError, RegistryError
from provisioner.registry.answer import UNAVAILABLE
from provisioner.registry.keys import Shape
from provisioner.registry.rows import Rows

log = logging.getLogger(__name__)

FRESH_WITHIN = 1.5
"""Seconds in which a reading is fresh or ``unavailable``; an asker is promised an answer within 2."""

CHECK_INTERVAL = 5.0
"""Seconds between checks when nobody asks, so that health and metrics tell the truth."""

MAX_BYTES = 256 * 1024 * 1024
MAX_KEYS = 1_000_000
"""Of one bucket, deleted keys included; all are held in memory. With more it is ``unavailable``; the others go on."""

SETTLED = 4096
"""How many of the last sequence numbers are remembered with the number of keys that there were then."""


@frozen
class Reading:
    """The rows of a bucket as of ``sequence`` or later. Use them before the next await: they go on changing."""

    rows: Rows
    sequence: int


def _nobody(_: Shape) -> None:
    pass


class Mirror:
    """One bucket: ``run`` keeps it, ``read`` gives the rows or says why not.

    Attributes:
        shape: which bucket.
        problem: why it was not available when it was last tried; ``""`` when it was. For logs, health and metrics.

    Args:
        bucket: the bucket; it need not exist yet.
        remade: called when the bucket is another than before: deleted and made again.
        max_bytes: bytes of values that are held.
        max_keys: keys that are held.
    """

    def __init__(
        self,
        shape: Shape,
        bucket: KeyValue,
        remade: Callable[[Shape], None] = _nobody,
        *,
        max_bytes: int = MAX_BYTES,
        max_keys: int = MAX_KEYS,
    ) -> None:
        self._max_bytes = max_bytes
        self._max_keys = max_keys
        self.shape = shape
        self.problem = "it was not read yet"
        self._bucket = bucket
        self._remade = remade
        self._created = ""
        self._watch: Watch | None = None
        self._changed = trio.Event()
        self._begin()

    def _begin(self) -> None:
        self._rows = Rows(self.shape)
        self._deleted: set[str] = set()
        self._settled: deque[tuple[int, int]] = deque(maxlen=SETTLED)
        self._complete = False

    @property
    def keys(self) -> tuple[int, int]:
        """How many keys are held, and how many of them are out of shape; for the metrics."""
        return len(self._rows), self._rows.bad_keys

    @property
    def _full(self) -> bool:
        return self._rows.size > self._max_bytes or len(self._rows) + len(self._deleted) > self._max_keys

    async def run(self, task_status: "trio.TaskStatus[None]" = trio.TASK_STATUS_IGNORED) -> None:
        """Watches until cancelled."""
        async with self._bucket.watch(self._take) as self._watch:
            task_status.started()
            while True:
                self._changed = trio.Event()
                with suppress(RegistryError):  # noted, for health, metrics and log
                    await self.read()
                with trio.move_on_after(CHECK_INTERVAL):
                    await self._changed.wait()

    def _take(self, event: Event) -> None:
        match event:
            case Begin():
                self._begin()
            case Entry() if self._full:
                pass  # nothing is answered any more, until it is small again and read anew
            case Entry() if event.deleted:
                self._rows.remove(event.key)
                self._deleted.add(event.key)
            case Entry(key, value, revision):
                self._deleted.discard(key)
                self._rows.put(key, value, revision)
            case CaughtUp():
                self._complete = True
                self._changed.set()
            case Lost(reason):
                self._note(reason)
                self._changed.set()
        if self._complete and isinstance(event, Entry | CaughtUp):
            sequence = event.revision if isinstance(event, Entry) else event.sequence
            self._settled.append((sequence, len(self._rows) + len(self._deleted)))

    def _note(self, problem: str) -> None:
        if problem == self.problem:
            return
        self.problem = problem
        if problem:
            log.warning("Bucket %s is not available: %s", self.shape.bucket, problem)
        else:
            log.info("Bucket %s is available", self.shape.bucket)

    async def read(self) -> Reading:
        """The rows, as new as the server's last word or newer.

        Raises:
            RegistryError: ``unavailable``, within ``FRESH_WITHIN`` seconds.
        """
        problem = f"it could not be read within {FRESH_WITHIN:g} s"
        with trio.move_on_after(FRESH_WITHIN):
            try:
                reading = await self._fresh()
            except (BusError, RegistryError) as error:
                problem = str(error)
            else:
                self._note("")
                return reading
        self._note(problem)
        raise RegistryError(UNAVAILABLE, f"{self.shape.bucket} is not available: {problem}")

    async def _fresh(self) -> Reading:
        if self._watch is None:
            raise RegistryError(UNAVAILABLE, "it is not watched yet")
        while True:
            status = await self._watch.confirm()
            if self._full:
                if status.size <= self._max_bytes and status.values <= self._max_keys:
                    self._watch.doubt("it is small enough again")
                limits = f"{self._max_bytes} bytes in {self._max_keys} keys"
                raise RegistryError(UNAVAILABLE, f"it holds more than this service takes, {limits}")
            if status.created != self._created:
                known, self._created = bool(self._created), status.created
                if known:
                    log.warning("Bucket %s was made anew", self.shape.bucket)
                    self._remade(self.shape)
            match self._as_many_keys(status):
                case True:
                    return Reading(self._rows, status.last_sequence)
                case False:
                    self._watch.doubt("keys are gone without a word")

    def _as_many_keys(self, status: Status) -> bool | None:
        """Whether the server counts as many keys as are known here; None when it has to be asked again.

        A bucket that keeps a history counts old values too, so there this can't be told and isn't.
        """
        if status.history != 1:
            return True
        for sequence, keys in reversed(self._settled):
            if sequence == status.last_sequence:
                return keys == status.values
            if sequence < status.last_sequence:
                break
        return None  # the watch has heard more by now
