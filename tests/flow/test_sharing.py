"""Several instances at work on one fleet: each server once, none forgotten when a member comes or goes."""

from contextlib import AsyncExitStack
from typing import Any

import trio
from attrs import evolve
from prometheus_client import CollectorRegistry
from trio.testing import MockClock

from provisioner.bus.memory import MemoryBroker, MemoryBus
from provisioner.choria.v1 import V1
from provisioner.leader.sharing import Sharing
from provisioner.metrics import Metrics
from provisioner.service import Service
from provisioner.testing import ScriptedHelper, ScriptedNode
from tests.flow.conftest import CONFIG

FLEET = [f"n{i}.example.net" for i in range(60)]


class Instance:
    """One of several."""

    def __init__(self, broker: MemoryBroker, name: str, **changes: Any) -> None:
        self.bus: MemoryBus = broker.connect()
        self.registry = CollectorRegistry()
        metrics = Metrics(self.registry, "testing")
        self.helper = ScriptedHelper()
        self.lead = Sharing(self.bus, name, metrics)
        self.service = Service(
            evolve(CONFIG, **changes),
            identity=name,
            bus=self.bus,
            wire=V1(f"choria={name}"),
            run_helper=self.helper,
            metrics=metrics,
            lead=self.lead,
        )
        self.scope = trio.CancelScope()

    async def run(self) -> None:
        with self.scope:
            await self.service.run()

    @property
    def members(self) -> float:
        value = self.registry.get_sample_value("choria_provisioner_members", {"site": "testing"})
        assert value is not None
        return value

    @property
    def provisioned(self) -> set[str]:
        return {one.identity for one in self.service.history.recent if one.outcome == "provisioned"}


async def nodes(stack: AsyncExitStack, broker: MemoryBroker) -> dict[str, ScriptedNode]:
    return {name: await stack.enter_async_context(ScriptedNode(name).on(broker.connect())) for name in FLEET}


def configured(fleet: dict[str, ScriptedNode]) -> list[int]:
    return [sum(action == "configure" for action, _ in node.calls) for node in fleet.values()]


async def test_three_share_a_fleet_and_one_is_killed(broker: MemoryBroker, clock: MockClock) -> None:
    three = [Instance(broker, name, interval=3600.0) for name in ("a", "b", "c")]
    async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
        for one in three:
            nursery.start_soon(one.run)
        await trio.sleep(3)
        assert [one.members for one in three] == [3, 3, 3]
        fleet = await nodes(stack, broker)
        three[2].bus.disconnect("killed")
        three[2].scope.cancel()
        for one in three:
            one.service.look_now()
        await trio.sleep(5)
        shares = [one.provisioned for one in three]
        assert shares[0]
        assert shares[1]
        assert not shares[0] & shares[1]
        assert len(shares[0] | shares[1]) < len(FLEET)
        await trio.sleep(20)  # three periods of silence, and a look
        assert [one.members for one in three[:2]] == [2, 2]
        assert three[0].provisioned | three[1].provisioned == set(FLEET)
        assert configured(fleet) == [1] * len(FLEET)
        nursery.cancel_scope.cancel()


async def test_a_polite_leave_is_acted_on_at_once(broker: MemoryBroker, clock: MockClock) -> None:
    a, b = Instance(broker, "a", interval=3600.0), Instance(broker, "b", interval=3600.0)
    async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
        nursery.start_soon(a.run)
        nursery.start_soon(b.run)
        await trio.sleep(3)
        await nodes(stack, broker)
        b.scope.cancel()
        await trio.sleep(4)
        assert a.members == 1
        assert a.provisioned == set(FLEET)
        nursery.cancel_scope.cancel()


async def test_the_later_of_two_with_one_identity_stands_aside(broker: MemoryBroker, clock: MockClock) -> None:
    first, second = Instance(broker, "a"), Instance(broker, "a")
    second.lead.members.me = evolve(second.lead.members.me, started=first.lead.members.me.started + 1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(first.run)
        nursery.start_soon(second.run)
        await trio.sleep(3)
        assert (first.lead.role, second.lead.role) == ("sharing", "aside")
        assert first.service.term is not None
        assert second.service.term is None
        first.scope.cancel()
        await trio.sleep(1)
        assert second.lead.role == "sharing"
        assert second.service.term is not None
        nursery.cancel_scope.cancel()


async def test_who_hears_nothing_gives_nobody_up(broker: MemoryBroker, clock: MockClock) -> None:
    """A member that lost its connection would else come back believing that the whole fleet is its own."""
    a, b = Instance(broker, "a"), Instance(broker, "b")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(a.run)
        nursery.start_soon(b.run)
        await trio.sleep(3)
        a.bus.disconnect("the cable was cut")
        await trio.sleep(60)
        assert list(a.lead.members.identities) == ["a", "b"]
        assert list(b.lead.members.identities) == ["b"]
        a.bus.reconnect()
        await trio.sleep(1)
        assert list(b.lead.members.identities) == ["a", "b"]
        nursery.cancel_scope.cancel()
