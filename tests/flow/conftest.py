"""``serve`` whole, on a bus in memory and under a jumping clock."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest
import trio
import trio.testing
from attrs import define, evolve
from prometheus_client import CollectorRegistry

from provisioner.bus.memory import MemoryBroker
from provisioner.choria.v1 import V1
from provisioner.choria.wire import Wire
from provisioner.config import Config
from provisioner.fleet.crew import Ended
from provisioner.leader.lead import Lead
from provisioner.metrics import Metrics
from provisioner.secret import Secret
from provisioner.service import Service
from provisioner.testing import ScriptedHelper

CONFIG = Config(
    path=Path("/etc/choria-provisioner/choria-provisioner.yaml"),
    workers=4,
    interval=60.0,
    interval_text="1m",
    helper=("/bin/helper",),
    token=Secret("s3cret"),
    site="testing",
)


@define
class Running:
    """A service at work, and all that a test wants to see of it."""

    service: Service
    broker: MemoryBroker
    helper: ScriptedHelper
    registry: CollectorRegistry
    ended: list[Ended]
    scope: trio.CancelScope
    _news: trio.Event

    def words(self, identity: str | None = None) -> list[str]:
        return [e.finished.outcome for e in self.ended if identity in {None, e.finished.identity}]

    def metric(self, name: str, **labels: str) -> float:
        value = self.registry.get_sample_value(f"choria_provisioner_{name}_total", {"site": "testing", **labels})
        if value is None:
            value = self.registry.get_sample_value(f"choria_provisioner_{name}", {"site": "testing", **labels})
        assert value is not None, f"no metric {name}{labels}"
        return value

    async def outcomes(self, count: int) -> list[str]:
        """Waits until so many cycles have ended."""
        with trio.fail_after(3600):  # of the jumping clock
            while len(self.ended) < count:
                await self._news.wait()
        return self.words()


class Serve(Protocol):
    def __call__(
        self,
        *,
        helper: ScriptedHelper | None = None,
        lead: Lead | None = None,
        wire: Wire | None = None,
        **changes: Any,
    ) -> AbstractAsyncContextManager[Running]: ...


@pytest.fixture
def broker() -> MemoryBroker:
    return MemoryBroker()


@pytest.fixture
def clock() -> trio.testing.MockClock:
    """Jumps to the next deadline whenever nothing else can happen. pytest-trio uses it for a test that names it."""
    return trio.testing.MockClock(autojump_threshold=0)


@pytest.fixture
def serve(broker: MemoryBroker) -> Callable[..., Any]:
    @asynccontextmanager
    async def running(
        *, helper: ScriptedHelper | None = None, lead: Lead | None = None, wire: Wire | None = None, **changes: Any
    ) -> AsyncIterator[Running]:
        helper = helper or ScriptedHelper()
        registry = CollectorRegistry()
        ended: list[Ended] = []

        def on_end(one: Ended) -> None:
            ended.append(one)
            result._news.set()
            result._news = trio.Event()

        service = Service(
            evolve(CONFIG, **changes),
            identity="prov.example.net",
            bus=broker.connect(),
            wire=wire or V1("choria=prov.example.net"),
            run_helper=helper,
            metrics=Metrics(registry, "testing"),
            lead=lead,
            on_end=on_end,
        )
        async with trio.open_nursery() as nursery:
            result = Running(service, broker, helper, registry, ended, nursery.cancel_scope, trio.Event())
            await nursery.start(service.run)
            yield result
            nursery.cancel_scope.cancel()

    return running
