"""``mesh-provisioner`` as a nursery tree: four mirrors, the keeper of the registry, the verb, the monitor page.

serve
├─ monitor page
├─ mirror of each bucket   watch, checked, made again when it is of no use
├─ keeper                  at start, when the bucket was made anew, every hour
└─ verb                    a task for each question
"""

import json
import logging

import trio
from prometheus_client import CollectorRegistry

from provisioner import monitor
from provisioner.bus.interface import Bus
from provisioner.bus.keyvalue import KeyValue
from provisioner.errors import BusError
from provisioner.registry.buckets import Mirror
from provisioner.registry.keeper import Keeper
from provisioner.registry.keys import REGISTRY, SHAPES, Shape
from provisioner.registry.metrics import Metrics
from provisioner.registry.table import wanted
from provisioner.registry.verb import Verb
from provisioner.version import __version__

log = logging.getLogger(__name__)

AGAIN = 2.0
"""Seconds between tries to do what the account may not, or the server can't, do now."""

STORE_TIMEOUT = 1.0
"""Seconds for one request to JetStream."""


class Service:
    """One instance, to be embedded or run by ``mesh-provisioner serve``.

    Args:
        bus: its connection.
        registry: where its metrics are registered.
    """

    def __init__(self, bus: Bus, registry: CollectorRegistry) -> None:
        self._bus = bus
        self._listening = False
        self.metrics = Metrics(registry)
        self._buckets = {what: KeyValue(bus, shape.bucket, timeout=STORE_TIMEOUT) for what, shape in SHAPES.items()}
        self.mirrors = {what: Mirror(shape, self._buckets[what], self._made_anew) for what, shape in SHAPES.items()}
        self.keeper = Keeper(self.mirrors[REGISTRY.what], self._buckets[REGISTRY.what], wanted(), self.metrics)
        self.metrics.watch(bus, self.mirrors)

    def _made_anew(self, shape: Shape) -> None:
        if shape is REGISTRY:
            self.keeper.begin_again()

    def problems(self) -> dict[str, str]:
        """What keeps it from being ready, by the part that has the problem; empty when it is ready."""
        found = {mirror.shape.bucket: mirror.problem for mirror in self.mirrors.values()}
        found["registry"] = self.keeper.problem
        found["verb"] = "" if self._listening else "not subscribed"
        found["connection"] = "" if self._bus.connected else self._bus.last_error or "not connected"
        return {part: problem for part, problem in found.items() if problem}

    async def run(
        self,
        *,
        create_buckets: bool = False,
        monitor_port: int | None = None,
        task_status: "trio.TaskStatus[int | None]" = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serves until cancelled.

        Args:
            create_buckets: make the buckets that are missing (first set-up, tests); else they are bound only.
            monitor_port: TCP port of the monitor page, 0 for a free one; None for no page.
            task_status: told the monitor's port once the verb is listened to.

        Raises:
            ConfigError: the monitor's port can't be had.
        """
        async with trio.open_nursery() as nursery:
            port = None
            if monitor_port is not None:
                port = await nursery.start(self._monitor, monitor_port)
            if create_buckets:
                nursery.start_soon(self._create_buckets)
            for mirror in self.mirrors.values():
                await nursery.start(mirror.run)
            nursery.start_soon(self.keeper.run)
            await nursery.start(self._listen)
            task_status.started(port)

    async def _listen(self, task_status: "trio.TaskStatus[None]" = trio.TASK_STATUS_IGNORED) -> None:
        verb = Verb(self._bus, self.mirrors, self.metrics)
        while True:
            try:
                async with trio.open_nursery() as nursery:
                    await nursery.start(verb.run)
                    self._listening = True
                    task_status.started()  # once: what the server takes away later, the bus asks for again
            except* BusError as refused:
                log.error("The verb can't be listened to: %s", refused.exceptions[0])  # noqa: TRY400
                await trio.sleep(AGAIN)

    async def _create_buckets(self) -> None:
        for bucket in self._buckets.values():
            while True:
                await self._bus.wait_connected()
                try:
                    await bucket.create_bucket()
                    break
                except BusError as error:
                    log.error("Bucket %s could not be made: %s", bucket.bucket, error)  # noqa: TRY400
                    await trio.sleep(AGAIN)

    async def _monitor(self, port: int, task_status: "trio.TaskStatus[int]" = trio.TASK_STATUS_IGNORED) -> None:
        routes = {
            "/metrics": monitor.metrics_route(self.metrics.registry),
            "/healthz": monitor.Route(lambda _: monitor.Response(b"ok\n")),
            "/readyz": monitor.Route(lambda _: self._ready()),
            "/status": monitor.Route(lambda _: self._status(), loopback_only=True),
        }
        await monitor.serve(port, routes, file="--monitor-port", key="", task_status=task_status)

    def _ready(self) -> monitor.Response:
        if problems := self.problems():
            text = "".join(f"{part}: {problem}\n" for part, problem in problems.items())
            return monitor.Response(text.encode(errors="replace"), status=503)
        return monitor.Response(b"ready\n")

    def _status(self) -> monitor.Response:
        status = {
            "version": __version__,
            "server": self._bus.url,
            "problems": self.problems(),
            "keys": {mirror.shape.bucket: mirror.keys[0] for mirror in self.mirrors.values()},
            "bad_keys": {mirror.shape.bucket: mirror.keys[1] for mirror in self.mirrors.values()},
        }
        return monitor.Response(json.dumps(status, indent=1).encode() + b"\n", "application/json")
