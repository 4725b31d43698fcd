"""The workers of one term: a bounded channel from the roster, one cancel scope a server, one outcome a cycle.

``sight`` is the door through which discovery and events come in. The roster holds who waits; the channel to the workers
is only as long as there are workers.
"""

import logging
from collections.abc import Callable
from time import time
from typing import Protocol

import trio
from attrs import define, frozen

from provisioner.cycle.outcome import KINDS, Outcome
from provisioner.cycle.steps import Cycle, Means
from provisioner.errors import Locked, LostLead, ProvisionerError
from provisioner.fleet.history import Finished, History
from provisioner.fleet.roster import Admission, Roster, Source
from provisioner.metrics import Metrics
from provisioner.rpc import Caller

log = logging.getLogger(__name__)

_ADDED: dict[str, str] = {
    "discovery": "Adding %s to the provision list after discovering it",
    "event": "Adding %s to the provision list after receiving an event",
    "operator": "Adding %s to the provision list as asked",
}


@define(slots=True)
class AtWork:
    """One cycle under way. Times are of the event loop's clock, in seconds."""

    identity: str
    since: float
    step: str = ""
    step_since: float = 0.0


@frozen
class Ended:
    """Everything about one finished cycle, for the audit trail."""

    finished: Finished
    started_at: float
    request_ids: tuple[str, ...]
    cycle: Cycle | None


class Tenure(Protocol):
    """The time during which this instance may act."""

    @property
    def lost(self) -> bool:
        """Whether it ended by losing the lead, not by being told to stop."""
        ...

    def check(self) -> None:
        """Raises ``LostLead`` when it is over."""
        ...


OnEnd = Callable[[Ended], None]
"""Told of each finished cycle."""


class Crew:
    """Works through the roster.

    Args:
        roster: who waits.
        history: what is remembered.
        caller: how servers are called.
        term: the term it all belongs to.
        metrics: what is counted.
        means: gives what the next cycle works with; running cycles keep theirs when it changes.
        on_end: told of each finished cycle.
        mine: whether a server is this instance's to provision.
    """

    def __init__(
        self,
        roster: Roster,
        history: History,
        caller: Caller,
        term: Tenure,
        metrics: Metrics,
        means: Callable[[], Means],
        on_end: OnEnd = lambda ended: None,
        mine: Callable[[str], bool] = lambda identity: True,
    ) -> None:
        self.roster = roster
        self.at_work: dict[str, AtWork] = {}
        self._history = history
        self._caller = caller
        self._term = term
        self._metrics = metrics
        self._means = means
        self._on_end = on_end
        self._mine = mine
        self._news = trio.Event()

    def sight(self, identity: str, source: Source) -> Admission:
        """Somebody saw this server in provisioning mode. Never blocks; whatever the identity is."""
        if not self._mine(identity):
            return Admission.NOT_OURS
        admission = self.roster.admit(identity, source, trio.current_time())
        if admission is Admission.ADMITTED:
            log.info(_ADDED[source], identity, extra={"identity": identity})
            if source == "discovery":
                self._metrics.discovered.inc()
            elif source == "event":
                self._metrics.event_discovered.inc()
            self._metrics.waiting(self.roster.waiting)
            self._news.set()
        elif admission in {Admission.BAD_IDENTITY, Admission.ROSTER_FULL}:
            self._metrics.refused_sighting(admission.value)
            log.warning("Refusing %r from %s: %s", identity[:255], source, admission.value)
        return admission

    async def run(self, workers: int) -> None:
        """Runs ``workers`` workers until cancelled."""
        send, receive = trio.open_memory_channel[str](workers)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._feed, send)
            for _ in range(workers):
                nursery.start_soon(self._work, receive)

    async def _feed(self, send: trio.MemorySendChannel[str]) -> None:
        while True:
            while (identity := self.roster.next()) is not None:
                await send.send(identity)
            self._news = trio.Event()
            await self._news.wait()

    async def _work(self, receive: trio.MemoryReceiveChannel[str]) -> None:
        async for identity in receive:
            if not self._mine(identity):
                self.roster.drop(identity)
                self._metrics.waiting(self.roster.waiting)
                continue
            started, started_at = trio.current_time(), time()
            waited = self.roster.begin(identity, started)
            self._metrics.waiting(self.roster.waiting)
            attempt = self._history.attempt(identity)
            cycle: Cycle | None = None
            request_ids: tuple[str, ...] = ()
            if waited is not None:
                outcome = Outcome("stale", f"it waited {waited:.0f} s")
            else:
                work = self.at_work[identity] = AtWork(identity, started)
                self._metrics.busy_workers.set(len(self.at_work))
                log.info("Provisioning %s", identity, extra={"identity": identity})
                try:
                    outcome, cycle, request_ids = await self._cycle(work, attempt)
                except trio.Cancelled:
                    if self._term.lost:
                        self._metrics.ended("lost_lead")
                        log.info("Leaving %s: this instance is no longer the leader", identity)
                    raise
                finally:
                    del self.at_work[identity]
                    self._metrics.busy_workers.set(len(self.at_work))
                rest = outcome.rest if outcome.rest is not None else KINDS[outcome.word].rest
                self.roster.finish(
                    identity,
                    trio.current_time(),
                    rest=self.roster.interval if rest is None else rest,
                    failed=outcome.kind.error,
                    locked=outcome.word == "locked",
                )
            if outcome.word == "upgrading" and cycle is not None:
                self._history.upgraded(identity, cycle.facts.version)
            finished = Finished(
                identity, outcome.word, outcome.step, outcome.text, time(), trio.current_time() - started, attempt,
                outcome.reason,
            )  # fmt: skip
            self._metrics.ended(outcome.word)
            self._history.add(finished)
            _report(finished)
            self._on_end(Ended(finished, started_at, request_ids, cycle))

    async def _cycle(self, work: AtWork, attempt: int) -> tuple[Outcome, Cycle | None, tuple[str, ...]]:
        """One server, to whatever end: the edge at which errors become outcomes."""
        identity = work.identity
        means = self._means()
        cycle: Cycle | None = None
        request_ids: list[str] = []

        def on_step(step: str) -> None:
            work.step, work.step_since = step, trio.current_time()

        def upgrade_allowed(version: str) -> None:
            self._history.allow_upgrade(identity, version)

        try:
            with self._caller.conversation(identity, clock=means.clock) as talk:
                request_ids = talk.request_ids
                cycle = Cycle(
                    means,
                    talk,
                    check=self._term.check,
                    on_step=on_step,
                    attempt=attempt,
                    upgrade_allowed=upgrade_allowed,
                )
                outcome = await cycle.run()
        except Locked:
            outcome = Outcome("locked", "held by another provisioner", work.step)
        except LostLead as error:
            outcome = Outcome("lost_lead", str(error), work.step)
        except ProvisionerError as error:
            word = error.reason if error.reason in KINDS else "bad_configuration"
            outcome = Outcome(word, str(error), work.step)
        except Exception:
            # The only place for it: anything unforeseen in one server's cycle is that server's end alone.
            log.exception("A bug in the cycle of %s", identity, extra={"identity": identity})
            outcome = Outcome("internal_error", "a bug; the traceback is above", work.step)
        return outcome, cycle, tuple(request_ids)


def _report(finished: Finished) -> None:
    """The one line that says how a cycle ended (spec: outcomes 1, 2)."""
    name, text = finished.identity, finished.text
    extra = {"identity": name, "outcome": finished.outcome, "seconds": round(finished.seconds, 3)}
    suffix = f": {text}" if text else ""
    match finished.outcome:
        case "provisioned":
            log.info("Provisioned %s", name, extra=extra)
        case "deferred":
            log.info("Deferred %s%s", name, suffix, extra=extra)
        case "shut_down":
            log.info("Shut down %s%s", name, suffix, extra=extra)
        case "upgrading":
            log.info("Upgrading %s %s", name, text, extra=extra)
        case "locked":
            log.info("%s is held by another provisioner", name, extra=extra)
        case "stale":
            log.info("Skipping %s, %s", name, text, extra=extra)
        case "lost_lead":
            log.info("Leaving %s%s", name, suffix, extra=extra)
        case word:
            extra["step"] = finished.step
            log.error("Could not provision %s: %s: %s (%s)", name, finished.step, text, word, extra=extra)
