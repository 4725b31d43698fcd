"""Keeps the registry bucket equal to the table: at start, when the bucket was made anew, and every hour (mesh B5).

Only differences are written, each against the revision that was read, so that two instances at a roll-over can't undo
each other's work or write in turns for ever: whoever loses reads again and finds nothing left to do.
"""

import logging
from collections.abc import Mapping
from typing import Protocol

import trio

from provisioner.bus.keyvalue import KeyValue
from provisioner.errors import BusError, RegistryError, RevisionConflict
from provisioner.registry.answer import UNAVAILABLE
from provisioner.registry.buckets import Reading
from provisioner.registry.diff import Change, Create, Delete, Update, differences
from provisioner.registry.keys import quoted
from provisioner.registry.metrics import FAILED, RECONCILED, Metrics

log = logging.getLogger(__name__)

INTERVAL = 3600.0
"""Seconds from the end of one comparison to the next."""

TRIES = 3
"""Readings of one comparison, when somebody else writes between a reading and our writing."""

RETRY_FIRST, RETRY_MAX = 1.0, 60.0
"""Seconds between tries at start, doubled each time up to the second."""


class Reader(Protocol):
    """What the registry bucket is read by: its ``Mirror``."""

    async def read(self) -> Reading:
        """See ``Mirror``."""
        ...


class Keeper:
    """The writer of the registry bucket.

    Attributes:
        problem: why the registry was not brought up to date when that was last tried; ``""`` when it was.
    """

    def __init__(self, reader: Reader, bucket: KeyValue, wanted: Mapping[str, bytes], metrics: Metrics) -> None:
        self.problem = "it was not compared yet"
        self._reader = reader
        self._bucket = bucket
        self._wanted = wanted
        self._metrics = metrics
        self._again = trio.Event()

    def begin_again(self) -> None:
        """The bucket is another than before: what was true of the old one says nothing about it."""
        self.problem = "the bucket was made anew and not compared yet"
        self._again.set()

    async def run(self) -> None:
        """Compares and writes until cancelled. No failure ends it."""
        pause = RETRY_FIRST
        while True:
            self._again = trio.Event()
            starting = bool(self.problem)
            try:
                await self.reconcile()
            except (BusError, RegistryError) as error:
                self._metrics.reconciles.labels(FAILED).inc()
                log.error("The registry could not be brought up to date: %s", error)  # noqa: TRY400
                if starting:
                    self.problem = str(error)
                    await trio.sleep(pause)
                    pause = min(pause * 2, RETRY_MAX)
                    continue
            else:
                self._metrics.reconciles.labels(RECONCILED).inc()
                self._metrics.reconciled_at.set_to_current_time()
                if not self._again.is_set():
                    self.problem = ""
            pause = RETRY_FIRST
            with trio.move_on_after(INTERVAL):
                await self._again.wait()

    async def reconcile(self) -> int:
        """Writes what differs and gives the number of writes.

        Raises:
            RegistryError: the bucket can't be read, or others wrote between reading and writing each time.
            BusError: a write was refused or got no answer.
        """
        written = 0
        for _ in range(TRIES):
            reading = await self._reader.read()
            changes = [each for each in differences(self._wanted, reading.rows) if self._can_be_named(each)]
            try:
                for change in changes:
                    await self._write(change)
                    written += 1
            except RevisionConflict as error:
                log.info("Somebody else writes the registry: %s", error)
                continue
            return written
        raise RegistryError(UNAVAILABLE, f"others wrote the registry while it was read, {TRIES} times")

    def _can_be_named(self, change: Change) -> bool:
        """A key with a blank or a control character can be stored by a careless program, and deleted by no sane one."""
        if change.key in self._wanted or (change.key.isprintable() and " " not in change.key):
            return True
        log.error("The registry has the key %s, which has to be purged by hand", quoted(change.key))
        return False

    async def _write(self, change: Change) -> None:
        match change:
            case Create(key, value):
                word = "create"
                await self._bucket.create(key, value)
            case Update(key, value, revision):
                word = "update"
                await self._bucket.update(key, value, revision)
            case Delete(key, revision):
                word = "delete"
                await self._bucket.delete(key, revision)
        self._metrics.changes.labels(word).inc()
        log.info("Registry: %sd %s", word, quoted(change.key))
