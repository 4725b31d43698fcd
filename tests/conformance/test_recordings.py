"""Every message that real Choria was recorded saying: decoded, hashes and signatures recomputed, encoded again."""

import base64
import hashlib

import pytest

from provisioner.choria import events, ids, rpc, subjects
from provisioner.choria.filter import Filter
from provisioner.choria.security import token_claims, verify_certificate_signature, verify_seed_signature
from provisioner.choria.v1 import V1
from provisioner.choria.v2 import V2
from provisioner.choria.wire import DISCOVERY_PING, DISCOVERY_PONG, NANOSECOND, Reply, Request
from provisioner.errors import BadReply, Locked, RemoteRefusal
from tests.asking import encode_request
from tests.conformance.recordings import NAMES, Recorded, recording, wire

STARTED = 1_795_959_000
"""Unix seconds shortly before the recordings."""


def _choria(name: str) -> list[Recorded]:
    return [each for each in recording(name) if each.is_choria]


def _requests(name: str) -> list[tuple[Recorded, Request]]:
    return [(each, wire(name).decode_request(each.data)) for each in _choria(name) if not each.is_reply]


def _replies(name: str) -> list[tuple[Recorded, Reply]]:
    return [(each, wire(name).decode_reply(each.data)) for each in _choria(name) if each.is_reply]


def test_all_98_messages_are_there() -> None:
    counts = {name: (len(_requests(name)), len(_replies(name))) for name in NAMES}
    assert counts == {"wire-v1-pki": (11, 10), "wire-v1-refused": (12, 12), "wire-v2-issuer": (27, 26)}


@pytest.mark.parametrize("name", NAMES)
def test_requests_say_what_was_sent(name: str) -> None:
    for recorded, request in _requests(name):
        assert request.collective == "provisioning"
        assert request.sender in {"prov.example.net", "prov2.example.net"}
        assert request.ttl == 60
        assert STARTED < request.time_ns / NANOSECOND < STARTED + 1000
        assert request.reply_to == subjects.reply(request.caller, request.id)
        if request.agent == "discovery":
            assert recorded.subject == subjects.broadcast("discovery")
            assert request.payload == DISCOVERY_PING
            assert request.filter == Filter(agent=("choria_provision",))
        else:
            assert recorded.subject.startswith("provisioning.node.")
            assert request.filter == Filter(agent=(request.agent,))
            body = rpc.decode_rpc_request(request.payload)
            assert body.agent == request.agent
            assert rpc.encode_rpc_request(body.agent, body.action, body.data) == request.payload


@pytest.mark.parametrize("name", NAMES)
def test_replies_answer_the_requests(name: str) -> None:
    requests = {request.id: (recorded, request) for recorded, request in _requests(name)}
    for recorded, reply in _replies(name):
        asked, request = requests[reply.request]
        assert recorded.subject == request.reply_to
        assert reply.agent == request.agent
        assert abs(reply.time_ns - request.time_ns) < 5 * NANOSECOND
        assert wire(name).reply_sender(recorded.data) == reply.sender
        if request.agent == "discovery":
            assert reply.payload == DISCOVERY_PONG
        else:
            assert asked.subject == subjects.node(reply.sender)
            body = rpc.decode_rpc_reply(reply.payload)
            assert body.action == rpc.decode_rpc_request(request.payload).action
            encoded = rpc.encode_rpc_reply(body.action, body.data, statuscode=body.statuscode, statusmsg=body.statusmsg)
            assert encoded == reply.payload


def test_hashes_of_all_replies_are_right() -> None:
    counted = 0
    for name in NAMES:
        for recorded in _choria(name):
            if recorded.is_reply:
                secure = recorded.secure
                inner = secure["message"].encode() if "message" in secure else base64.b64decode(secure["reply"])
                assert base64.b64decode(secure["hash"]) == hashlib.sha256(inner).digest()
                counted += 1
    assert counted == 48


def test_signatures_of_all_requests_verify_with_the_callers_own_credential() -> None:
    counted = 0
    for name in NAMES:
        for recorded in _choria(name):
            if recorded.is_reply:
                continue
            counted += 1
            speaker = wire(name)
            if isinstance(speaker, V1):
                _, opened = speaker.open_request(recorded.data)
                message = opened.message.encode()
                assert verify_certificate_signature(message, opened.signature, opened.pubcert)
                assert not verify_certificate_signature(message + b" ", opened.signature, opened.pubcert)
            else:
                _, signed = speaker.open_request(recorded.data)
                public = token_claims(signed.caller)["public_key"]
                assert verify_seed_signature(signed.request, signed.signature, public)
                assert not verify_seed_signature(signed.request + b" ", signed.signature, public)
    assert counted == 50


@pytest.mark.parametrize("name", NAMES)
def test_encoding_gives_the_recorded_bytes(name: str) -> None:
    speaker = wire(name)
    for recorded, request in _requests(name):
        assert encode_request(speaker, request, url=recorded.url) == recorded.data
    for recorded, reply in _replies(name):
        assert speaker.encode_reply(reply, url=recorded.url) == recorded.data


def test_version_1_ids_are_32_hex_digits_and_version_2_ids_ksuids_of_that_second() -> None:
    for name in NAMES:
        for _, request in _requests(name):
            if name == "wire-v2-issuer":
                assert ids.parse_ksuid(request.id)[0] == request.time_ns // NANOSECOND
            else:
                assert len(request.id) == 32
                int(request.id, 16)


def test_each_version_refuses_the_other() -> None:
    v1, v2 = wire("wire-v1-pki"), wire("wire-v2-issuer")
    assert (v1.version, v2.version) == (1, 2)
    assert isinstance(v1, V1)
    assert isinstance(v2, V2)
    for name, other in (("wire-v1-pki", v2), ("wire-v2-issuer", v1)):
        for recorded in _choria(name):
            for decode in (other.decode_reply, other.decode_request, other.reply_sender):
                with pytest.raises(BadReply, match="transport is"):
                    decode(recorded.data)


@pytest.mark.parametrize("name", NAMES)
def test_events_of_both_forms(name: str) -> None:
    recorded_events = [each for each in recording(name) if each.is_event]
    kinds = set()
    for recorded in recorded_events:
        event = events.decode_event(recorded.data)
        kinds.add(event.type)
        assert event.subject == recorded.subject
        assert STARTED < event.timestamp < STARTED + 1000
        if event.component == "provisioner":
            assert event.version == "0.0.0"
            assert events.encode_native(event) == recorded.data
        else:
            assert event.component == "provision_mode_server"
            assert event.identity.endswith(".example.net")
            assert events.encode_cloud(event) == recorded.data
    assert "startup" in kinds


def test_refusals_as_they_were_recorded() -> None:
    found: dict[tuple[str, str], int] = {}
    for name in NAMES:
        for _, reply in _replies(name):
            if reply.agent == "discovery":
                continue
            body = rpc.decode_rpc_reply(reply.payload)
            if body.statuscode:
                with pytest.raises(RemoteRefusal) as caught:
                    rpc.raise_for_status(body)
                assert caught.value.code == 1
                if "release rolled back" in caught.value.text:
                    assert caught.value.can_retry
                else:
                    assert not caught.value.can_retry
                assert isinstance(caught.value, Locked) == ("lock" in caught.value.text)
                key = body.action, caught.value.text.split(":")[0]
                found[key] = found.get(key, 0) + 1
    assert found == {
        ("jwt", "Incorrect provision token supplied"): 3,
        ("jwt", "Could not obtain provisioning lock"): 3,
        ("configure", "Could not save Action Policies"): 5,
        ("release_update", "Update to version 0.31.0 failed, release rolled back"): 3,
    }
