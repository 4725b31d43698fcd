"""The simulated server hears what real servers were recorded hearing, and must say what they said."""

from collections import defaultdict
from functools import cache
from random import Random
from typing import Any

import pytest
from attrs import evolve

from provisioner.choria import rpc
from provisioner.choria.wire import DISCOVERY_PONG, NANOSECOND, Reply, Request
from provisioner.secret import Secret
from provisioner.simulator.node import Node
from provisioner.simulator.server import Effect, Send, Server, server_wire
from provisioner.simulator.site import Leave, Site, Tell
from provisioner.trust.pem import first_block
from provisioner.trust.request import DenyList, verify_request
from provisioner.trust.sealing import seal_private_key
from tests.conformance.recordings import FIXTURES, Recorded, key, recording, wire

PRIVATE_KEY = Secret(key("jwt-signer-rsa.key"))
RANDOM = {"ecdh_public", "csr", "public_key", "signature"}
"""Fields of answers that are made anew each time."""
V1_SITE = Site(token="s3cret", jwt=key("provisioning-v1.jwt"), facts=lambda _identity: {}, can_update=False)
V2_SITE = Site(
    token="s3cret",
    jwt=key("provisioning-v2.jwt"),
    facts=lambda _identity: {"dc": "lab", "role": "web"},
    can_update=True,
)
SERVERS = [
    ("wire-v1-pki", "n1", V1_SITE, 5),
    ("wire-v1-pki", "key1", V1_SITE, 5),
    ("wire-v1-refused", "w1", V1_SITE, 12),
    ("wire-v2-issuer", "n1", V2_SITE, 5),
    ("wire-v2-issuer", "defer1", V2_SITE, 3),
    ("wire-v2-issuer", "shutdown1", V2_SITE, 4),
    ("wire-v2-issuer", "upgrade1", V2_SITE, 6),
    ("wire-v2-issuer", "wrongext1", V2_SITE, 8),
]


@cache
def _conversation(name: str, identity: str) -> list[tuple[Recorded, Recorded]]:
    """Each request to one server with its recorded reply, in the order of the requests."""
    speaker = wire(name)
    replies: dict[str, dict[str, Recorded]] = defaultdict(dict)
    for each in recording(name):
        if each.is_choria and each.is_reply:
            reply = speaker.decode_reply(each.data)
            replies[reply.request][reply.sender] = each
    asked = []
    for each in recording(name):
        if each.is_choria and not each.is_reply:
            found = replies[speaker.decode_request(each.data).id]
            if identity in found:
                asked.append((each, found[identity]))
    return asked


def _server(name: str, identity: str, site: Site) -> Server:
    upgrade = "fails" if identity.startswith("upgrade") else "ok"
    return Server(Node(identity, site, Random(1), upgrade=upgrade), server_wire(1 if "v1" in name else 2))


def _ask(server: Server, recorded: Recorded) -> tuple[Reply, list[Effect]]:
    request = _resealed(server, server.wire.decode_request(recorded.data))
    effects = server.receive(request, now=request.time_ns / NANOSECOND + 0.01, url=recorded.url)
    (send,) = [effect for effect in effects if isinstance(effect, Send)]
    assert send.subject == request.reply_to
    return server.wire.decode_reply(send.data), effects


def _resealed(server: Server, request: Request) -> Request:
    """The request, with the private key in it sealed for our server's exchange: it was sealed for the real one's."""
    if request.agent == "discovery":
        return request
    body = rpc.decode_rpc_request(request.payload)
    if not body.data.get("key"):
        return request
    sealed = seal_private_key(PRIVATE_KEY, server.node.exchange_public)
    data = body.data | {"key": sealed.key, "ecdh_public": sealed.ecdh_public}
    return evolve(request, payload=rpc.encode_rpc_request(body.agent, body.action, data))


@pytest.mark.parametrize(("name", "short", "site", "messages"), SERVERS)
def test_says_what_the_real_one_said(name: str, short: str, site: Site, messages: int) -> None:
    identity = f"{short}.example.net"
    server = _server(name, identity, site)
    conversation = _conversation(name, identity)
    assert len(conversation) == messages
    for asked, answered in conversation:
        ours, _ = _ask(server, asked)
        real = wire(name).decode_reply(answered.data)
        assert (ours.request, ours.sender, ours.agent) == (real.request, real.sender, real.agent)
        if real.agent == "discovery":
            assert ours.payload == real.payload == DISCOVERY_PONG
            continue
        _compare(rpc.decode_rpc_reply(ours.payload), rpc.decode_rpc_reply(real.payload), identity)


def _compare(ours: rpc.RPCReply, real: rpc.RPCReply, identity: str) -> None:
    assert (ours.action, ours.statuscode) == (real.action, real.statuscode)
    if real.action == "release_update":  # its words name the network's fault
        assert ours.statusmsg.startswith(
            "Update to version 0.31.0 failed, release rolled back: release 0.31.0 not found"
        )
        return
    assert ours.statusmsg == real.statusmsg
    assert list(ours.data) == list(real.data)
    fixed: dict[str, Any] = {field: value for field, value in real.data.items() if field not in RANDOM}
    message = fixed.get("message", "")
    if message.startswith("Shutting"):
        del fixed["message"]
        assert ours.data["message"].startswith("Shutting Choria Server down after ")
    assert {field: ours.data[field] for field in fixed} == fixed
    if real.action == "gencsr":
        verify_request(ours.data["csr"], identity, DenyList([]), public_key=ours.data["public_key"])
        assert ours.data["csr"].count("\n") == real.data["csr"].count("\n")
        assert ours.data["public_key"].split("\n")[0] == real.data["public_key"].split("\n")[0]
    if real.action == "gen25519":
        assert {field: len(ours.data[field]) for field in RANDOM & set(real.data)} == {
            "public_key": 64,
            "signature": 128,
        }
    if real.action == "jwt" and not real.statuscode:
        assert len(ours.data["ecdh_public"]) == len(real.data["ecdh_public"]) == 64


@pytest.mark.parametrize(("name", "fixture", "site"), [
    ("wire-v1-pki", "server-v1.cfg", V1_SITE),
    ("wire-v2-issuer", "server-v2.cfg", V2_SITE),
])  # fmt: skip
def test_writes_what_the_real_one_wrote(name: str, fixture: str, site: Site) -> None:
    text = (FIXTURES / fixture).read_text()
    identity = next(line.partition("=")[2] for line in text.splitlines() if line.startswith("identity="))
    server = _server(name, identity, site)
    happened: list[Effect] = []
    for asked, _ in _conversation(name, identity):
        happened += _ask(server, asked)[1]
    comment, *lines = text.splitlines()
    ours_comment, *ours = server.node.files["server.cfg"].splitlines()
    assert sorted(ours) == sorted(lines)
    assert comment.startswith(ours_comment)
    if fixture == "server-v1.cfg":
        assert first_block(server.node.files["ssl/private.pem"]) == first_block(PRIVATE_KEY.reveal())
        assert "ssl/csr.pem" not in server.node.files
    assert [effect.type for effect in happened if isinstance(effect, Tell)] == ["provisioned", "shutdown"]
    assert [effect for effect in happened if isinstance(effect, Leave)] == [Leave(2.0)]
