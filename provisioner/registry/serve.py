"""``mesh-provisioner`` as a nursery tree: four mirrors, the keeper, the verb; beside it the monitor page.

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

from provisioner.bus.background import single
from provisioner.bus.interface import Bus
from provisioner.bus.keyvalue import KeyValue
from provisioner.errors import BusError
from provisioner.monitor import Response, Route, metrics_route
from provisioner.monitor import serve as serve_pages
from provisioner.registry.buckets import Mirror
from provisioner.registry.client import VERB
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
        self._past = ""
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
        # A permission that was taken away; the bus asks for it again. What was refused before it was granted is past.
        if VERB in self._bus.last_error and self._bus.last_error is not self._past:
            found["verb"] = self._bus.last_error
        found["connection"] = "" if self._bus.connected else self._bus.last_error or "not connected"
        return {part: problem for part, problem in found.items() if problem}

    async def run(
        self, *, create_buckets: bool = False, task_status: "trio.TaskStatus[None]" = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serves until cancelled.

        Args:
            create_buckets: make the buckets that are missing (first set-up, tests); else they are bound only.
            task_status: told once the verb is listened to.
        """
        async with trio.open_nursery() as nursery:
            if create_buckets:
                nursery.start_soon(self._create_buckets)
            for mirror in self.mirrors.values():
                await nursery.start(mirror.run)
            nursery.start_soon(self.keeper.run)
            await nursery.start(self._listen)
            task_status.started()

    async def _listen(self, task_status: "trio.TaskStatus[None]" = trio.TASK_STATUS_IGNORED) -> None:
        verb = Verb(self._bus, self.mirrors, self.metrics)
        while True:
            try:
                async with trio.open_nursery() as nursery:
                    await nursery.start(verb.run)
                    self._listening, self._past = True, self._bus.last_error
                    task_status.started()  # once: what the server takes away later, the bus asks for again
            except* BusError as refused:
                log.error("The verb can't be listened to: %s", single(refused))  # noqa: TRY400
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

    async def monitor(self, port: int, task_status: "trio.TaskStatus[int]" = trio.TASK_STATUS_IGNORED) -> None:
        """Serves ``/metrics``, ``/healthz``, ``/readyz`` and ``/status`` beside ``run``, until cancelled.

        Args:
            port: TCP port; 0 takes a free one.
            task_status: told the port once it is open.

        Raises:
            ConfigError: the port can't be had.
        """
        routes = {
            "/metrics": metrics_route(self.metrics.registry),
            "/healthz": Route(lambda _: Response(b"ok\n")),
            "/readyz": Route(lambda _: self._ready()),
            "/status": Route(lambda _: self._status(), loopback_only=True),
        }
        await serve_pages(port, routes, file="--monitor-port", key="", task_status=task_status)

    def _ready(self) -> Response:
        if problems := self.problems():
            text = "".join(f"{part}: {problem}\n" for part, problem in problems.items())
            return Response(text.encode(errors="replace"), status=503)
        return Response(b"ready\n")

    def _status(self) -> Response:
        status = {
            "version": __version__,
            "server": self._bus.url,
            "problems": self.problems(),
            "keys": {mirror.shape.bucket: mirror.keys[0] for mirror in self.mirrors.values()},
            "bad_keys": {mirror.shape.bucket: mirror.keys[1] for mirror in self.mirrors.values()},
        }
        return Response(json.dumps(status, indent=1).encode() + b"\n", "application/json")
