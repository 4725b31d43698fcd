"""A simulated fleet on the bus in memory, seen by somebody who asks by hand; the clock jumps."""

import json
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from attrs import define, field
from trio.testing import MockClock

from provisioner.bus.interface import Message
from provisioner.bus.memory import MemoryBroker, MemoryBus
from provisioner.choria import events, rpc, subjects
from provisioner.choria.filter import Filter
from provisioner.choria.wire import DISCOVERY_PING, NANOSECOND, Request, Wire
from provisioner.errors import TrustError
from provisioner.simulator.faults import Fault, Kind
from provisioner.simulator.fleet import BATCH, Fleet, MadeFleet, make_servers, open_fleet, summary
from provisioner.simulator.server import server_wire
from provisioner.trust.tokens import verify_provisioning_token
from tests.asking import encode_request

NOW = 1_700_000_000
CALLER = "choria=prov"
CONFIG = json.dumps({"identity": "n0001.example.net", "plugin.choria.server.provision": "0"})


@define
class Asker:
    """Asks servers by hand, and keeps what it hears."""

    bus: MemoryBus
    wire: Wire
    replies: dict[str, list[bytes]] = field(factory=dict)
    heard: list[events.Event] = field(factory=list)

    def publish(self, subject: str, agent: str, payload: bytes, wanted: str) -> str:
        id_ = self.wire.new_request_id()
        reply_to = subjects.reply(CALLER, id_)
        when = NOW * NANOSECOND
        request = Request(
            id_, agent, "provisioning", "prov", CALLER, 60, when, Filter(agent=(wanted,)), payload, reply_to
        )
        self.bus.publish(subject, encode_request(self.wire, request, url="memory://"))
        return reply_to

    def ask(self, identity: str, action: str, agent: str = "choria_provision", **data: Any) -> str:
        body = rpc.encode_rpc_request(agent, action, {"token": "s3cret"} | data)
        return self.publish(subjects.node(identity), agent, body, agent)

    async def answers(self, reply_to: str) -> list[bytes]:
        await trio.sleep(0.001)
        return self.replies.get(reply_to, [])

    async def call(self, identity: str, action: str, agent: str = "choria_provision", **data: Any) -> rpc.RPCReply:
        (answer,) = await self.answers(self.ask(identity, action, agent, **data))
        reply = self.wire.decode_reply(answer)
        assert reply.sender == identity
        return rpc.decode_rpc_reply(reply.payload)

    async def discover(self) -> list[str]:
        found = self.publish(subjects.broadcast("discovery"), "discovery", DISCOVERY_PING, "choria_provision")
        return [self.wire.reply_sender(answer) for answer in await self.answers(found)]

    def on_reply(self, message: Message) -> None:
        self.replies.setdefault(message.subject, []).append(message.data)

    def on_event(self, message: Message) -> None:
        event = events.decode_event(message.data)
        assert message.subject == event.subject
        self.heard.append(event)


@asynccontextmanager
async def _lab(made: MadeFleet, version: int = 1) -> AsyncIterator[tuple[Fleet, Asker]]:
    broker = MemoryBroker()
    asker = Asker(broker.connect(), server_wire(version))
    async with (
        asker.bus.subscribe(f"{subjects.reply_prefix(CALLER)}.*", asker.on_reply),
        asker.bus.subscribe("choria.lifecycle.event.*.provision_mode_server", asker.on_event),
        open_fleet(broker.connect(), made.servers, clock=lambda: float(NOW)) as fleet,
    ):
        yield fleet, asker


def _made(number: int, faults: Iterable[tuple[Fault, int]] = (), version: int = 1) -> MadeFleet:
    return make_servers(number, version=version, token="s3cret", now=NOW, faults=faults)


@pytest.mark.parametrize("version", [1, 2])
async def test_a_fleet_is_found_and_provisioned_by_hand(version: int, autojump_clock: MockClock) -> None:
    made = _made(3, version=version)
    async with _lab(made, version) as (fleet, asker):
        await fleet.announce()
        assert [(event.type, event.identity) for event in asker.heard] == [
            ("startup", f"n000{number}.example.net") for number in (1, 2, 3)
        ]
        assert len({event.id for event in asker.heard}) == 3
        names = await asker.discover()
        assert sorted(names) == sorted(fleet.servers) == [f"n000{number}.example.net" for number in (1, 2, 3)]
        for name in names:
            token = (await asker.call(name, "jwt")).data["jwt"]
            claims = verify_provisioning_token(token, made.issuer.key.public, now=NOW)
            assert (claims["cht"], bool(claims.get("v2"))) == ("s3cret", version == 2)
            assert (await asker.call(name, "inventory", "rpcutil")).data["facts"]["fqdn"] == name
            assert (await asker.call(name, "configure", config=CONFIG)).statuscode == 0
            assert (await asker.call(name, "restart", splay=1)).statuscode == 0
        assert fleet.gone == 0
        assert len(await asker.discover()) == 3  # still there while their restart waits
        began = trio.current_time()
        await fleet.wait_gone(3)
        assert trio.current_time() - began == pytest.approx(2.0, abs=0.1)
        assert await asker.discover() == []
        assert await asker.answers(asker.ask(names[0], "jwt")) == []
    assert Counter(event.type for event in asker.heard) == {"startup": 3, "provisioned": 3, "shutdown": 3}
    for server in made.servers:
        assert server.node.received.done == {"jwt": 1, "inventory": 1, "configure": 1, "restart": 1}
        assert server.node.received.configurations == [json.loads(CONFIG)]
    assert summary(made.servers) == "3 servers: 3 configured (at most 1 times), 3 restarted"


async def test_a_broadcast_to_many_lets_others_have_their_turn(autojump_clock: MockClock) -> None:
    made = _made(BATCH * 2 + 1)
    async with _lab(made) as (fleet, asker):
        await fleet.announce()
        assert len(asker.heard) == len(made.servers)
        assert sorted(await asker.discover()) == sorted(fleet.servers)


async def test_a_flood_of_broadcasts_is_skipped_and_said(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with _lab(_made(1)) as (_, asker):
        for _ in range(150):
            asker.publish(subjects.broadcast("discovery"), "discovery", DISCOVERY_PING, "choria_provision")
        await trio.sleep(1)
        assert "is behind with answering broadcasts" in caplog.text
        assert len(await asker.discover()) == 1


async def test_what_is_not_for_them(autojump_clock: MockClock) -> None:
    async with _lab(_made(1)) as (_, asker):
        asker.bus.publish(subjects.node("n0001.example.net"), b"garbage")
        asker.bus.publish(subjects.broadcast("discovery"), b"garbage")
        assert await asker.answers(asker.ask("nobody.example.net", "jwt")) == []
        other = Asker(asker.bus, server_wire(2), asker.replies)
        assert await other.answers(other.ask("n0001.example.net", "jwt")) == []
        assert await other.discover() == []
        assert (await asker.call("n0001.example.net", "jwt")).statuscode == 0


async def test_slow_servers_answer_late(autojump_clock: MockClock) -> None:
    async with _lab(_made(1, [(Fault(Kind.SLOW, seconds=5.0), 1)])) as (_, asker):
        first = asker.ask("n0001.example.net", "jwt")
        await trio.sleep(4.9)
        assert await asker.answers(first) == []
        await trio.sleep(0.2)
        assert len(await asker.answers(first)) == 1


async def test_one_that_comes_back_announces_itself_and_is_well(autojump_clock: MockClock) -> None:
    fault = Fault(Kind.COMING_BACK, "configure", times=1, seconds=3.0)
    made = _made(1, [(fault, 1)])
    name = made.servers[0].identity
    async with _lab(made) as (fleet, asker):
        assert await asker.answers(asker.ask(name, "configure", config=CONFIG)) == []
        assert await asker.discover() == []
        await trio.sleep(3.1)
        assert [event.type for event in asker.heard] == ["startup"]
        assert await asker.discover() == [name]
        assert (await asker.call(name, "configure", config=CONFIG)).statuscode == 0
        assert fleet.gone == 0


async def test_one_that_dies_stays_away_and_says_nothing_more(autojump_clock: MockClock) -> None:
    made = _made(1, [(Fault(Kind.DYING, "jwt"), 1)])
    async with _lab(made) as (fleet, asker):
        late = asker.ask(made.servers[0].identity, "shutdown")
        assert await asker.answers(asker.ask(made.servers[0].identity, "jwt")) == []
        assert len(await asker.answers(late)) == 1
        await trio.sleep(20)
        assert fleet.gone == 1
        assert asker.heard == []


async def test_a_dead_one_s_late_answer_is_not_sent(autojump_clock: MockClock) -> None:
    made = _made(1, [(Fault(Kind.SLOW, "inventory", seconds=5.0), 1)])
    (server,) = made.servers
    async with _lab(made) as (_, asker):
        late = asker.ask(server.identity, "inventory", "rpcutil")
        await trio.sleep(1)
        server.present = False
        await trio.sleep(9)
        assert await asker.answers(late) == []


async def test_a_shutdown_says_farewell(autojump_clock: MockClock) -> None:
    made = _made(1)
    async with _lab(made) as (fleet, asker):
        assert (await asker.call(made.servers[0].identity, "shutdown")).statuscode == 0
        await fleet.wait_gone(1)
        await asker.bus.flush()
        assert [event.type for event in asker.heard] == ["shutdown"]


async def test_an_upgraded_one_comes_back_with_its_new_version(autojump_clock: MockClock) -> None:
    made = _made(3, [(Fault(Kind.UPGRADE_FAILS), 1), (Fault(Kind.UPGRADE_LOOP), 1)])
    upgrade = {"repository": "http://repo", "version": "9.9.9"}
    async with _lab(made) as (_, asker):
        codes = [(await asker.call(server.identity, "release_update", **upgrade)).statuscode for server in made.servers]
        assert codes == [1, 0, 0]
        await trio.sleep(3.5)
        startups = [(event.identity[:5], event.version) for event in asker.heard if event.type == "startup"]
        assert startups == [("n0002", "0.30.2"), ("n0003", "9.9.9")]


async def test_one_whose_configuration_was_written_comes_back_elsewhere(autojump_clock: MockClock) -> None:
    fault = Fault(Kind.COMING_BACK, "restart", times=1, seconds=3.0)
    made = _made(1, [(fault, 1)])
    async with _lab(made) as (fleet, asker):
        await asker.call(made.servers[0].identity, "configure", config=CONFIG)
        asker.ask(made.servers[0].identity, "restart")
        await fleet.wait_gone(1)
        assert await asker.discover() == []


async def test_faults_that_are_in_what_a_server_has(autojump_clock: MockClock) -> None:
    kinds = (Kind.WRONG_TOKEN, Kind.UNVERIFIABLE_JWT, Kind.EXPIRED_JWT)
    made = _made(7, [(Fault(kind), 2) for kind in kinds])
    async with _lab(made) as (_, asker):
        replies = [await asker.call(server.identity, "jwt") for server in made.servers]
    assert [reply.statusmsg for reply in replies[:2]] == ["Incorrect provision token supplied"] * 2
    for reply, reason in zip(replies[2:6], ["jwt_bad_signature"] * 2 + ["jwt_expired"] * 2, strict=True):
        with pytest.raises(TrustError) as caught:
            verify_provisioning_token(reply.data["jwt"], made.issuer.key.public, now=NOW)
        assert caught.value.reason == reason
    verify_provisioning_token(replies[6].data["jwt"], made.issuer.key.public, now=NOW)


async def test_what_is_said_while_the_connection_is_cut_is_lost(autojump_clock: MockClock) -> None:
    fault = Fault(Kind.SLOW, seconds=5.0)
    made = _made(1, [(fault, 1)])
    async with _lab(made) as (fleet, asker):
        late = asker.ask(made.servers[0].identity, "jwt")
        await trio.sleep(1)
        theirs = fleet._bus
        assert isinstance(theirs, MemoryBus)
        theirs.disconnect()
        await trio.sleep(5)
        theirs.reconnect()
        assert await asker.answers(late) == []
        assert await asker.discover() == [made.servers[0].identity]
