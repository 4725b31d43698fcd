"""The nursery tree: who runs inside whom, and what ends with what. Nothing else is started anywhere else.

    serve
    └─ nursery  service                     ends => the process ends
       ├─ monitor page                      / /metrics /healthz /readyz /status
       ├─ connection watch                  looks for servers when a lost connection is back
       ├─ announcement                      once: our own startup event
       ├─ lead ── opens and cancels terms   (for ever one term without an election)
       └─ nursery  term                     one time as leader, cancelled as a whole when it is lost
          ├─ term.watch                     our own clock
          ├─ caller.watch_connection        calls fail when the connection was lost
          ├─ discovery                      ticker and "look now"
          ├─ lifecycle                      subscription
          └─ crew
             ├─ worker 1 ── scope(server a) ── cycle ── helper
             └─ ...

The roster and the channel are made inside the term: nothing of it survives. What isn't foreseen in one server's cycle
is that server's end (``fleet/crew.py``); what isn't foreseen anywhere else ends the process, loudly.
"""

import logging
from collections.abc import Callable, Mapping
from time import time

import trio
from attrs import evolve, fields_dict, frozen
from prometheus_client import CollectorRegistry

from provisioner import monitor, page, status
from provisioner.bus.interface import Bus
from provisioner.choria.wire import Wire
from provisioner.config import Config
from provisioner.config_keys import KEYS
from provisioner.cycle.means import load_means
from provisioner.cycle.steps import RunHelper
from provisioner.fleet.crew import Crew, OnEnd
from provisioner.fleet.history import History
from provisioner.fleet.roster import Roster
from provisioner.helper.process import run_helper as run_helper_process
from provisioner.leader.lead import Lead, Unopposed
from provisioner.leader.term import Term
from provisioner.metrics import Metrics
from provisioner.notice.discovery import Discovery
from provisioner.notice.lifecycle import announce, listening
from provisioner.rpc import open_caller

log = logging.getLogger(__name__)


UNCHANGEABLE = frozenset(key.name for key in KEYS if not key.reload and key.name in fields_dict(Config))
"""Keys of the YAML that a running service keeps as they were at its start."""


@frozen
class Running:
    """What a term consists of while it lasts."""

    crew: Crew
    discovery: Discovery


class Service:
    """One provisioner. Make it, then ``await service.run()`` in a nursery; or call ``serve``.

    Args:
        config: what to do.
        identity: our own Choria identity: the sender of requests, the value in the election, part of servers' locks.
        bus: the shared connection.
        wire: the protocol version to speak, with the key to sign with.
        ttl: seconds for which a request is valid.
        run_helper: runs the site's helper; the seam for embedders and tests.
        metrics: where to count; a private registry when None.
        lead: decides when this instance may act; always, when None.
        on_end: told of each finished cycle.
        pages: more pages for ``monitor_port``.
        clock: unix time in seconds: what tokens are verified by and requests are dated with.
    """

    def __init__(
        self,
        config: Config,
        *,
        identity: str,
        bus: Bus,
        wire: Wire,
        ttl: int = 60,
        run_helper: RunHelper = run_helper_process,
        metrics: Metrics | None = None,
        lead: Lead | None = None,
        on_end: OnEnd = lambda ended: None,
        pages: Mapping[str, monitor.Route] | None = None,
        clock: Callable[[], float] = time,
    ) -> None:
        self.config = config
        self.identity = identity
        self.metrics = metrics or Metrics(CollectorRegistry(), config.site)
        self.lead = lead or Unopposed()
        self.history = History()
        self.metrics.connected.set_function(lambda: float(bus.connected))
        self.metrics.paused.set_function(lambda: float(not self.acting))
        self.monitor_port: int | None = None
        self.bus = bus
        self.started_at = time()
        self._last_connected = 0.0
        self._wire = wire
        self._ttl = ttl
        self._run_helper = run_helper
        self._on_end = on_end
        self._pages = dict(pages or {})
        self._clock = clock
        self._means = load_means(config, run_helper, self.metrics, clock=clock)
        self.term: Running | None = None
        self._open: Term | None = None

    async def run(self, *, task_status: trio.TaskStatus["Service"] = trio.TASK_STATUS_IGNORED) -> None:
        """Serves until cancelled. ``task_status`` is told once the configuration is accepted and the page is open.

        Raises:
            ConfigError: ``monitor_port`` can't be had.
        """
        log.info(
            "Choria Provisioner starting using configuration file %s. Discovery interval %s using %d workers",
            self.config.path, self.config.interval_text, self.config.workers,
        )  # fmt: skip
        self._last_connected = trio.current_time()
        async with trio.open_nursery() as service:
            if self.config.monitor_port:
                self.monitor_port = await service.start(self._serve_pages)
            service.start_soon(self._watch_connection)
            service.start_soon(self._announce)
            task_status.started(self)
            await self.lead.hold_terms(self._run_term, self.look_now)

    @property
    def acting(self) -> bool:
        """Whether this instance may act at this very moment."""
        return self._open is not None and not self._open.over

    def look_now(self) -> None:
        """Starts a discovery now, if this instance may act."""
        if self.term is not None:
            self.term.discovery.look_now()

    def disconnected_for(self) -> float:
        """Seconds since there was a connection, by the event loop's clock; 0 while there is one."""
        now = trio.current_time()
        if self.bus.connected:
            self._last_connected = now
        return now - self._last_connected

    def reload(self, config: Config) -> list[str]:
        """Takes a new configuration: whole, or not at all. Running cycles finish under the old one.

        Returns:
            The keys that differ and can't change while running; they keep their old values.

        Raises:
            ConfigError: it can't be used; nothing has changed.
        """
        fixed = {
            name: getattr(self.config, name)
            for name in UNCHANGEABLE | ({"helper"} if self.config.helper_mode == "stream" else set())
            if getattr(config, name) != getattr(self.config, name)
        }
        config = evolve(config, **fixed)
        self._means = load_means(config, self._run_helper, self.metrics, clock=self._clock)
        self.config = config
        if self.term is not None:
            self.term.crew.roster.interval = config.interval
        self.look_now()
        return sorted(fixed)

    async def _serve_pages(self, *, task_status: trio.TaskStatus[int]) -> None:
        loopback_only = self.config.status_listen == "loopback"
        routes = {
            "/metrics": monitor.metrics_route(self.metrics.registry),
            **status.routes(self, loopback_only=loopback_only),
            **page.routes(loopback_only=loopback_only),
            **self._pages,
        }
        await monitor.serve(self.config.monitor_port, routes, file=str(self.config.path), task_status=task_status)

    async def _announce(self) -> None:
        await self.bus.wait_connected()
        announce(self.bus, self.identity)

    async def _watch_connection(self) -> None:
        """Looks for servers as soon as a lost connection is back: their events may have been missed."""
        await self.bus.wait_connected()
        epoch = self.bus.epoch
        while True:
            epoch = await self.bus.wait_epoch_change(epoch)
            log.info("Connected again, to %s", self.bus.url)
            self.look_now()

    async def _run_term(self, term: Term) -> None:
        """One term: returns when its scope is cancelled."""
        self._open = term
        try:
            with term.scope:
                async with (
                    open_caller(
                        self.bus,
                        self._wire,
                        sender=self.identity,
                        ttl=self._ttl,
                        check=term.check,
                        metrics=self.metrics,
                    ) as caller,
                    trio.open_nursery() as nursery,
                ):
                    roster = Roster(self.config.interval)
                    crew = Crew(
                        roster,
                        self.history,
                        caller,
                        term,
                        self.metrics,
                        lambda: self._means,
                        self._on_end,
                        self.lead.mine,
                    )
                    discovery = Discovery(
                        caller,
                        lambda: roster.begin_discovery(trio.current_time()),
                        lambda identity: crew.sight(identity, "discovery"),
                        lambda: self.config.interval,
                        self.metrics,
                    )
                    self.term = Running(crew, discovery)
                    nursery.start_soon(term.watch)
                    nursery.start_soon(caller.watch_connection)
                    nursery.start_soon(crew.run, self.config.workers)
                    async with listening(
                        self.bus,
                        self.config.lifecycle_component,
                        lambda identity: crew.sight(identity, "event"),
                        self.metrics,
                    ):
                        await discovery.run()
        finally:
            self.term = self._open = None
            self.metrics.waiting(0)
            self.metrics.busy_workers.set(0)


async def serve(
    config: Config,
    *,
    identity: str,
    bus: Bus,
    wire: Wire,
    ttl: int = 60,
    run_helper: RunHelper = run_helper_process,
    metrics: Metrics | None = None,
    lead: Lead | None = None,
    on_end: OnEnd = lambda ended: None,
    pages: Mapping[str, monitor.Route] | None = None,
    task_status: trio.TaskStatus[Service] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Provisions until cancelled: ``await nursery.start(partial(serve, config, ...))`` returns the ``Service``.

    The arguments are those of ``Service``. The bus must outlive the scope that is cancelled: a leader that stops still
    has to say so.

    Raises:
        ConfigError: a file of the configuration, or ``monitor_port``, can't be used.
    """
    service = Service(
        config,
        identity=identity,
        bus=bus,
        wire=wire,
        ttl=ttl,
        run_helper=run_helper,
        metrics=metrics,
        lead=lead,
        on_end=on_end,
        pages=pages,
    )
    await service.run(task_status=task_status)
