"""Who is known, who waits and who is worked on: one structure, so that the three can never disagree.

Pure: time is an argument (seconds of one monotonic clock). A server is in the roster in exactly one state:

    waiting   admitted, in one of the queues
    working   a worker has it
    resting   done with for now: not admitted again before a moment (60 s after a restart, a helper's ``defer_for``)

There is no way to be known and not queued, or queued twice: the record *is* the place in the queue.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator
from enum import Enum
from typing import Literal

from attrs import define, frozen

from provisioner.choria.ids import identity_problem

Source = Literal["discovery", "event", "operator"]

ROSTER_LIMIT = 250_000
"""Servers held at most; beyond it a sighting is refused and counted. About 220 bytes each: 55 MB when full."""

STALE_AFTER_INTERVALS = 2
"""A server that waited longer than this many intervals may well be gone: it is dropped at no cost in RPC."""

SUSPECTS_LIMIT = 10_000
"""How many servers whose last cycle failed are remembered, so that the others go first."""


class Admission(Enum):
    """What became of one sighting."""

    ADMITTED = "admitted"
    REFRESHED = "refreshed"
    DUPLICATE = "duplicate"
    RESTING = "resting"
    NOT_OURS = "not_ours"
    BAD_IDENTITY = "bad_identity"
    ROSTER_FULL = "roster_full"


@define(slots=True)
class _Record:
    """One known server. ``since`` is when its present state began; ``seen`` its latest sighting."""

    source: Source
    seen: float
    since: float
    state: Literal["waiting", "working", "resting"] = "waiting"
    until: float = 0.0


@frozen
class Waiting:
    """One waiting server, for the status page. ``age`` in seconds."""

    identity: str
    age: float
    source: Source


class Roster:
    """The servers of one term.

    Args:
        interval: the discovery interval in seconds; it decides what is a duplicate and what is stale.
        limit: servers held at most.
    """

    def __init__(self, interval: float, *, limit: int = ROSTER_LIMIT) -> None:
        self.interval = interval
        self._limit = limit
        self._known: dict[str, _Record] = {}
        # Four queues, served in turn: a flood of one kind (events of servers long gone, servers that keep failing)
        # delays the others by one place, not by its whole length.
        self._queues: OrderedDict[tuple[Source, bool], deque[str]] = OrderedDict()
        self._suspects: OrderedDict[str, None] = OrderedDict()
        self._locked: set[str] = set()
        self.waiting = 0
        self.working = 0

    def admit(self, identity: str, source: Source, now: float) -> Admission:
        """Takes one sighting at the time ``now``.

        A server waiting for less than an interval is a duplicate; one that waited longer is as good as new: it keeps
        its turn and counts as seen now.
        """
        record = self._known.get(identity)
        if record is None or (record.state == "resting" and now >= record.until):
            return self._admit(identity, source, now)
        if record.state == "waiting":
            if now - record.seen < self.interval:
                return Admission.DUPLICATE
            record.seen = now
            return Admission.REFRESHED
        return Admission.RESTING if record.state == "resting" else Admission.DUPLICATE

    def _admit(self, identity: str, source: Source, now: float) -> Admission:
        if identity_problem(identity):
            return Admission.BAD_IDENTITY
        if identity in self._locked and source == "event":
            return Admission.RESTING
        if identity not in self._known and len(self._known) >= self._limit:
            return Admission.ROSTER_FULL
        self._known[identity] = _Record(source, now, now)
        self._queues.setdefault((source, identity in self._suspects), deque()).append(identity)
        self.waiting += 1
        return Admission.ADMITTED

    def next(self) -> str | None:
        """The server whose turn it is, or None. It goes on waiting until ``begin``; nobody else will get it."""
        for _ in range(len(self._queues)):
            key, queue = next(iter(self._queues.items()))
            self._queues.move_to_end(key)
            if queue:
                return queue.popleft()
        return None

    def begin(self, identity: str, now: float) -> float | None:
        """A worker takes the server.

        Returns:
            None when it is to be worked on; else it was stale, is forgotten, and this is how long it waited (seconds).
        """
        record = self._known[identity]
        self.waiting -= 1
        waited = now - record.seen
        if waited > STALE_AFTER_INTERVALS * self.interval:
            del self._known[identity]
            return waited
        record.state, record.since = "working", now
        self.working += 1
        return None

    def drop(self, identity: str) -> None:
        """A worker does not take the server after all: it became another instance's."""
        self.waiting -= 1
        del self._known[identity]

    def finish(
        self, identity: str, now: float, *, rest: float = 0.0, failed: bool = False, locked: bool = False
    ) -> None:
        """A worker is done with the server.

        Args:
            identity: the server.
            now: the time.
            rest: seconds for which it is not admitted again; 0 forgets it at once.
            failed: its next turn comes after those of servers that did not fail.
            locked: another provisioner holds it: events don't admit it before the next discovery.
        """
        record = self._known[identity]
        self.working -= 1
        if rest > 0:
            record.state, record.since, record.until = "resting", now, now + rest
        else:
            del self._known[identity]
        if locked:
            self._locked.add(identity)
        self._suspects.pop(identity, None)
        if failed:
            self._suspects[identity] = None
            if len(self._suspects) > SUSPECTS_LIMIT:
                self._suspects.popitem(last=False)

    def begin_discovery(self, now: float) -> None:
        """A new sweep starts: locks may have ended, and rests that are over are forgotten."""
        self._locked.clear()
        for identity in [name for name, r in self._known.items() if r.state == "resting" and now >= r.until]:
            del self._known[identity]

    def __contains__(self, identity: object) -> bool:
        return identity in self._known

    def __len__(self) -> int:
        return len(self._known)

    def state(self, identity: str) -> str | None:
        """In which state a server is, or None for one that isn't known."""
        record = self._known.get(identity)
        return record.state if record is not None else None

    def counts(self) -> dict[str, int]:
        """Servers by state."""
        resting = len(self._known) - self.waiting - self.working
        return {"waiting": self.waiting, "working": self.working, "resting": resting}

    def waiting_servers(self, now: float, part: str = "") -> Iterator[Waiting]:
        """Every waiting server with ``part`` in its name, in order of admission."""
        for identity, record in self._known.items():
            if record.state == "waiting" and part in identity:
                yield Waiting(identity, now - record.since, record.source)
