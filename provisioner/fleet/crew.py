"""The workers of one term: a bounded channel from the roster, one cancel scope a server, one outcome a cycle.

``sight`` is the door through which discovery and events come in. The roster holds who waits; the channel to the workers
is only as long as there are workers.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
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
from provisioner.seldom import Seldom

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
        self._seldom = Seldom(log)

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
            self._seldom.warning(admission.value, "Refusing %r from %s: %s", identity[:255], source, admission.value)
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
            # Who waits goes on waiting while the broker is away: each would only end as `connection_lost`.
            await self._caller.connected()
            if not self._mine(identity):
                self.roster.drop(identity)
                self._metrics.waiting(self.roster.waiting)
                continue
            run = CycleRun(identity, self._history.attempt(identity), trio.current_time(), time())
            waited = self.roster.begin(identity, run.since)
            self._metrics.waiting(self.roster.waiting)
            if waited is not None:
                self._end(run, Outcome("stale", f"it waited {waited:.0f} s"))
                continue
            work = self.at_work[identity] = AtWork(identity, run.since)
            self._metrics.busy_workers.set(len(self.at_work))
            log.info("Provisioning %s", identity, extra={"identity": identity})

            def on_step(step: str, work: AtWork = work) -> None:
                work.step, work.step_since = step, trio.current_time()

            try:
                outcome = await run_cycle(
                    run, self._means(), self._caller, check=self._term.check, history=self._history, on_step=on_step
                )
            except trio.Cancelled:
                if self._term.lost:
                    self._end(run, Outcome("lost_lead", "this instance is no longer the leader", work.step))
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
            self._end(run, outcome)

    def _end(self, run: "CycleRun", outcome: Outcome) -> None:
        """Counts, remembers, logs and tells one outcome: in all places, or in none."""
        ended = run.ended(outcome)
        self._metrics.ended(outcome.word)
        self._history.add(ended.finished)
        _report(ended.finished)
        self._on_end(ended)


@define(slots=True)
class CycleRun:
    """One run of one server's cycle, so that whatever ends it, what is known of it can be told.

    ``since`` is of the event loop's clock, ``started_at`` Unix time; both in seconds.
    """

    identity: str
    attempt: int
    since: float
    started_at: float
    cycle: Cycle | None = None
    request_ids: Sequence[str] = ()

    def ended(self, outcome: Outcome) -> Ended:
        """All that is known of it, now that it has ended like this."""
        seconds = trio.current_time() - self.since
        finished = Finished(
            self.identity, outcome.word, outcome.step, outcome.text, time(), seconds, self.attempt, outcome.reason
        )
        return Ended(finished, self.started_at, tuple(self.request_ids), self.cycle)


async def run_cycle(
    run: CycleRun,
    means: Means,
    caller: Caller,
    *,
    check: Callable[[], None],
    history: History,
    on_step: Callable[[str], None],
    steps: Callable[[Cycle], Awaitable[Outcome]] = Cycle.run,
) -> Outcome:
    """One server, to whatever end: the edge at which errors become outcomes.

    Args:
        run: what is learned of it is kept there.
        means: what the cycle works with.
        caller: how the server is called.
        check: raises when this instance may no longer act.
        history: remembers upgrades.
        on_step: told the name of each step as it begins.
        steps: what to do with the server; all of a cycle by default.
    """
    identity, step = run.identity, ""

    def begin(name: str) -> None:
        nonlocal step
        step = name
        on_step(name)

    def upgrade_allowed(version: str) -> None:
        history.allow_upgrade(identity, version)

    try:
        with caller.conversation(identity, clock=means.clock) as talk:
            run.request_ids = talk.request_ids
            cycle = run.cycle = Cycle(
                means, talk, check=check, on_step=begin, attempt=run.attempt, upgrade_allowed=upgrade_allowed
            )
            outcome = await steps(cycle)
        if outcome.word == "upgrading":
            history.upgraded(identity, cycle.facts.version)
    except Locked:
        outcome = Outcome("locked", "held by another provisioner", step)
    except LostLead as error:
        outcome = Outcome("lost_lead", str(error), step)
    except ProvisionerError as error:
        word = error.reason if error.reason in KINDS else "bad_configuration"
        outcome = Outcome(word, str(error), step)
    except Exception:
        # The only place for it: anything unforeseen in one server's cycle is that server's end alone.
        log.exception("A bug in the cycle of %s", identity, extra={"identity": identity})
        outcome = Outcome("internal_error", "a bug; the traceback is above", step)
    return outcome


def _report(finished: Finished) -> None:
    """The one line that says how a cycle ended (spec: outcomes 1, 2)."""
    name, text = finished.identity, finished.text
    extra = {"identity": name, "outcome": finished.outcome, "seconds": round(finished.seconds, 3)}
    if finished.reason:
        extra["reason"] = finished.reason
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
