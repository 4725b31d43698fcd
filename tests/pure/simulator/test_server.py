"""A simulated server's wire: which requests it heeds, and what each fault looks like from outside."""

from random import Random
from typing import Any

import pytest
from attrs import evolve

from provisioner.choria import rpc, subjects
from provisioner.choria.filter import Fact, Filter
from provisioner.choria.wire import DISCOVERY_PING, DISCOVERY_PONG, NANOSECOND, Request
from provisioner.errors import BadReply
from provisioner.simulator.faults import Fault, Kind, parse_fault
from provisioner.simulator.keys import RequestPool
from provisioner.simulator.node import Node
from provisioner.simulator.server import Effect, Send, Server, server_wire
from provisioner.simulator.site import Leave, Site, Tell

NOW = 1_700_000_000.0
URL = "nats://broker:4222"
SITE = Site(token="s3cret", jwt="a.b.c", requests=RequestPool(1))


def _server(fault: Fault | None = None, version: int = 1) -> Server:
    return Server(Node("n1.example.net", SITE, Random(1)), server_wire(version), fault)


def _request(action: str = "jwt", agent: str = "choria_provision", **data: Any) -> Request:
    return Request(
        id="0123456789abcdef0123456789abcdef",
        agent=agent,
        collective="provisioning",
        sender="prov",
        caller="choria=prov",
        ttl=60,
        time_ns=int(NOW) * NANOSECOND,
        filter=Filter(agent=(agent,)),
        payload=rpc.encode_rpc_request(agent, action, {"token": "s3cret"} | data),
        reply_to=subjects.reply("choria=prov", "x"),
    )


PING = evolve(_request(agent="discovery"), payload=DISCOVERY_PING, filter=Filter(agent=("choria_provision",)))


def _receive(server: Server, request: Request, now: float = NOW) -> list[Effect]:
    return server.receive(request, now=now, url=URL)


def _sends(server: Server, request: Request) -> list[Send]:
    return [effect for effect in _receive(server, request) if isinstance(effect, Send)]


def _body(server: Server, send: Send) -> rpc.RPCReply:
    return rpc.decode_rpc_reply(server.wire.decode_reply(send.data).payload)


@pytest.mark.parametrize("version", [1, 2])
def test_pong(version: int) -> None:
    server = _server(version=version)
    (send,) = _sends(server, PING)
    assert send.subject == PING.reply_to
    assert server.wire.reply_sender(send.data) == "n1.example.net"
    assert server.wire.decode_reply(send.data).payload == DISCOVERY_PONG


@pytest.mark.parametrize(
    "request_",
    [
        evolve(PING, payload=b"ping"),  # base64 of something else
        evolve(PING, payload=b"hello?"),
        evolve(PING, collective="mcollective"),
        evolve(PING, reply_to=""),
        evolve(PING, filter=Filter(agent=("puppet",))),
        evolve(PING, filter=Filter(identity=("other",))),
        evolve(PING, filter=Filter(cf_class=("db",))),
        evolve(PING, filter=Filter(fact=(Fact("role", "==", "db"),))),
        evolve(PING, time_ns=PING.time_ns - 60 * NANOSECOND),
        evolve(PING, time_ns=PING.time_ns + 60 * NANOSECOND),
        evolve(_request(), agent="puppet", filter=Filter()),
    ],
)
def test_requests_that_are_not_answered(request_: Request) -> None:
    assert _receive(_server(), request_) == []


@pytest.mark.parametrize(
    "request_",
    [
        evolve(PING, payload=b"ping!"),
        evolve(PING, filter=Filter()),
        evolve(PING, filter=Filter(fact=(Fact("role", "==", "web"),), identity=("/^n1/",))),
        evolve(PING, time_ns=PING.time_ns - 59 * NANOSECOND),
    ],
)
def test_requests_that_are_answered(request_: Request) -> None:
    assert len(_receive(_server(), request_)) == 1


def test_nothing_from_one_who_is_away() -> None:
    server = _server()
    server.present = False
    assert _receive(server, PING) == []


def test_a_body_that_is_none() -> None:
    server = _server()
    (send,) = _sends(server, evolve(_request(), payload=b"nonsense"))
    reply = _body(server, send)
    assert (reply.action, reply.statuscode) == ("", 4)
    assert reply.statusmsg.startswith("Could not process request: the RPC request is not JSON")


def test_events_come_before_the_reply_and_leaving_after() -> None:
    server = _server()
    _receive(server, _request("configure", config='{"plugin.choria.server.provision":"0"}'))
    assert [type(effect) for effect in _receive(server, _request("restart", splay=1))] == [Tell, Send, Leave]


def test_event() -> None:
    event = _server().event(Tell("startup"), now=NOW, id_="id")
    assert (event.type, event.identity, event.component, event.version, event.timestamp) == (
        "startup",
        "n1.example.net",
        "provision_mode_server",
        "0.30.2",
        1_700_000_000,
    )
    assert _server().event(Tell("shutdown"), now=NOW, id_="id").version == ""
    assert _server().event(Tell("upgraded", "2"), now=NOW, id_="id").new_version == "2"


# --- faults -----------------------------------------------------------------------------------------------------------


def test_faults_by_name() -> None:
    assert parse_fault("slow") == Fault(Kind.SLOW)
    assert parse_fault("slow:jwt") == Fault(Kind.SLOW, "jwt")
    assert parse_fault("dying") == Fault(Kind.DYING, "configure")
    assert parse_fault("coming-back:jwt") == Fault(Kind.COMING_BACK, "jwt", times=1)
    with pytest.raises(ValueError, match="no fault is called 'x'; there are silent, slow, refusing"):
        parse_fault("x")


def test_a_fault_of_one_action_leaves_the_others_alone() -> None:
    server = _server(Fault(Kind.SILENT, "jwt"))
    assert _receive(server, _request("jwt")) == []
    assert len(_receive(server, _request("inventory", "rpcutil"))) == 1
    assert len(_receive(server, PING)) == 1
    assert server.node.received.asked == {"jwt": 1, "inventory": 1}
    assert server.node.received.done == {"inventory": 1}


def test_a_fault_that_strikes_twice() -> None:
    server = _server(Fault(Kind.SILENT, times=2))
    assert [len(_receive(server, _request())) for _ in range(3)] == [0, 0, 1]


def test_silent() -> None:
    assert _receive(_server(Fault(Kind.SILENT)), _request()) == []


def test_slow() -> None:
    (send,) = _sends(_server(Fault(Kind.SLOW, seconds=7.0)), _request())
    assert send.after == 7.0


def test_refusing_and_locked() -> None:
    for kind, text in ((Kind.REFUSING, "Simulated refusal"), (Kind.LOCKED, "Could not obtain provisioning lock")):
        server = _server(Fault(kind))
        reply = _body(server, _sends(server, _request())[0])
        assert (reply.statuscode, reply.statusmsg) == (1, text)
        assert not server.node.received.done


def test_twice_the_same_and_twice_different() -> None:
    first, second = _sends(_server(Fault(Kind.TWICE)), _request())
    assert first == second
    server = _server(Fault(Kind.TWO_ANSWERS))
    first, second = _sends(server, _request())
    assert (_body(server, first).data | {"message": "another answer"}) == _body(server, second).data
    assert first != second


def test_envelopes_that_lie() -> None:
    for version in (1, 2):
        server = _server(Fault(Kind.FOR_ANOTHER), version)
        (send,) = _sends(server, _request())
        assert server.wire.decode_reply(send.data).sender == "not-n1.example.net"
        server = _server(Fault(Kind.WRONG_ID), version)
        (send,) = _sends(server, _request())
        assert server.wire.decode_reply(send.data).request == "0" * 32
        server = _server(Fault(Kind.WRONG_VERSION), version)
        (send,) = _sends(server, _request())
        assert server_wire(3 - version).decode_reply(send.data).sender == "n1.example.net"
        server = _server(Fault(Kind.GARBAGE), version)
        (send,) = _sends(server, _request())
        with pytest.raises(BadReply):
            server.wire.decode_reply(send.data)


def test_bodies_that_are_wrong() -> None:
    server = _server(Fault(Kind.BAD_BODY))
    with pytest.raises(BadReply, match="the RPC reply is not JSON"):
        _body(server, _sends(server, _request())[0])
    for kind, action, data in (
        (Kind.EMPTY_DATA, "jwt", {}),
        (Kind.WRONG_TYPES, "jwt", {"jwt": 7, "ecdh_public": 7}),
        (Kind.BAD_CSR, "gencsr", {"csr": "not PEM"}),
        (Kind.BAD_KEY, "gen25519", {"public_key": "00ff"}),
        (Kind.HUGE, "jwt", {"message": "x" * 524_288}),
    ):
        server = _server(Fault(kind))
        reply = _body(server, _sends(server, _request(action))[0])
        assert (reply.action, reply.statuscode) == (action, 0)
        assert {field: reply.data[field] for field in data} == data
        if kind is Kind.EMPTY_DATA:
            assert reply.data == {}


def test_dying_and_coming_back() -> None:
    assert _receive(_server(Fault(Kind.DYING)), _request()) == [Leave(0.0)]
    assert _receive(_server(Fault(Kind.COMING_BACK, seconds=4.0)), _request()) == [Leave(0.0, 4.0)]


def test_a_lost_reply_was_done() -> None:
    server = _server(Fault(Kind.LOST_REPLY, "configure"))
    effects = _receive(server, _request("configure", config='{"a":"b"}'))
    assert effects == [Tell("provisioned")]
    assert server.node.received.configurations == [{"a": "b"}]
