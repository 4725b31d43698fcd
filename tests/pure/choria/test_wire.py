"""Both versions from both sides, with well-meant and with hostile bytes."""

import base64
import hashlib
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from provisioner.choria import ids
from provisioner.choria.encoding import MAX_MESSAGE_BYTES
from provisioner.choria.filter import Fact, Filter
from provisioner.choria.security import SeedSigner
from provisioner.choria.v1 import V1
from provisioner.choria.v2 import V2
from provisioner.choria.wire import NANOSECOND, Reply, Request, Wire
from provisioner.errors import BadReply
from provisioner.secret import Secret
from tests.asking import encode_request

URL = "nats://broker.example.net:4222"
WIRES: dict[int, Wire] = {1: V1("choria=me"), 2: V2("me", SeedSigner("e30.e30.sig", Secret("02" * 32)))}
VERSIONS = pytest.mark.parametrize("version", [1, 2])

texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
optional = st.text(st.characters(codec="utf-8"), max_size=20)
names = st.lists(texts, max_size=3).map(tuple)
filters = st.builds(
    Filter,
    fact=st.lists(st.builds(Fact, texts, st.sampled_from((">=", "<=", "<", ">", "!=", "==", "=~")), optional)).map(
        tuple
    ),
    cf_class=names,
    agent=names,
    identity=names,
)
seconds = st.integers(-10_000, 9_000_000_000)
requests = st.builds(
    Request,
    id=st.text("0123456789abcdef", min_size=32, max_size=32),
    agent=texts,
    collective=texts,
    sender=texts,
    caller=texts,
    ttl=st.integers(30, 10_000),
    time_ns=seconds.map(lambda each: each * NANOSECOND),
    filter=filters,
    payload=optional.map(str.encode),
    reply_to=optional,
)
replies = st.builds(
    Reply,
    request=optional,
    agent=optional,
    sender=texts,
    time_ns=seconds.map(lambda each: each * NANOSECOND),
    payload=optional.map(str.encode),
)
REQUEST = Request("0" * 32, "agent", "provisioning", "me", "choria=me", 60, 10**18, Filter(), b"{}", "reply.to")
REPLY = Reply("0" * 32, "agent", "n1", 10**18, b"{}")


@VERSIONS
@given(requests)
def test_request_round_trip(version: int, request: Request) -> None:
    wire = WIRES[version]
    assert wire.decode_request(encode_request(wire, request, url=URL)) == request


@VERSIONS
@given(replies)
def test_reply_round_trip(version: int, reply: Reply) -> None:
    wire = WIRES[version]
    data = wire.encode_reply(reply, url=URL)
    assert wire.decode_reply(data) == reply
    assert wire.reply_sender(data) == reply.sender


def test_version_1_cuts_time_to_seconds_and_carries_text_only() -> None:
    wire = WIRES[1]
    reply = evolve(REPLY, time_ns=1_700_000_000_999_999_999)
    assert wire.decode_reply(wire.encode_reply(reply, url=URL)).time_ns == 1_700_000_000 * NANOSECOND
    with pytest.raises(UnicodeDecodeError):
        wire.encode_reply(evolve(REPLY, payload=b"\xff"), url=URL)
    with pytest.raises(UnicodeDecodeError):
        encode_request(wire, evolve(REQUEST, payload=b"\xff"), url=URL)


def test_version_2_carries_any_bytes_and_nanoseconds() -> None:
    wire = WIRES[2]
    reply = evolve(REPLY, time_ns=1_700_000_000_123_456_789, payload=bytes(range(256)))
    assert wire.decode_reply(wire.encode_reply(reply, url=URL)) == reply


def test_request_ids() -> None:
    assert re.fullmatch("[0-9a-f]{32}", WIRES[1].new_request_id())
    seconds_then, _ = ids.parse_ksuid(WIRES[2].new_request_id())
    assert seconds_then > 1_700_000_000
    for wire in WIRES.values():
        assert wire.new_request_id() != wire.new_request_id()


def test_no_credential_in_repr() -> None:
    wire = V2("me", SeedSigner("secret.token.x".replace("token", "e30"), Secret("02" * 32)))
    assert repr(wire) == "V2(caller='me', version=2)"
    assert "sign" not in repr(WIRES[1])


# --- hostile bytes ---------------------------------------------------------------------------------------------------

DECODERS: list[Callable[[bytes], object]] = [
    decode for wire in WIRES.values() for decode in (wire.decode_request, wire.decode_reply, wire.reply_sender)
]
junk_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def _safe(decode: Callable[[bytes], object], data: bytes) -> None:
    try:
        decode(data)
    except BadReply as error:
        assert str(error).isprintable()  # noqa: PT017 - either outcome is right


@given(st.binary(max_size=200) | junk_json.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_give_a_value_or_bad_reply(data: bytes) -> None:
    for decode in DECODERS:
        _safe(decode, data)


def _layers(version: int, kind: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The three layers of a good message, as dictionaries: transport, secure layer, message."""
    wire = WIRES[version]
    data = encode_request(wire, REQUEST, url=URL) if kind == "request" else wire.encode_reply(REPLY, url=URL)
    transport = json.loads(data)
    secure = json.loads(base64.b64decode(transport["data"]))
    inner = secure["message"] if version == 1 else base64.b64decode(secure[kind])
    return transport, secure, json.loads(inner)


def _assemble(version: int, kind: str, layers: tuple[Any, Any, Any]) -> bytes:
    """A message of changed layers, with a right hash wherever one can be computed."""
    transport, secure, message = layers
    if isinstance(secure, dict) and message is not KEEP:
        inner = json.dumps(message).encode()
        if version == 1:
            secure["message"] = inner.decode()
        else:
            secure[kind] = base64.b64encode(inner).decode()
        if kind == "reply" and "hash" in secure:
            secure["hash"] = base64.b64encode(hashlib.sha256(inner).digest()).decode()
    if isinstance(transport, dict) and secure is not KEEP:
        transport["data"] = base64.b64encode(json.dumps(secure).encode()).decode()
    return json.dumps(transport).encode()


KEEP = object()


def _decode(version: int, kind: str, data: bytes) -> object:
    wire = WIRES[version]
    return wire.decode_request(data) if kind == "request" else wire.decode_reply(data)


@VERSIONS
@pytest.mark.parametrize("kind", ["request", "reply"])
@given(st.data())
def test_any_change_in_any_layer_gives_a_value_or_bad_reply(version: int, kind: str, data: st.DataObject) -> None:
    layers = _layers(version, kind)
    place = data.draw(st.sampled_from(layers))
    while isinstance(place, dict) and place:
        key = data.draw(st.sampled_from(sorted(place)))
        if isinstance(place[key], dict) and data.draw(st.booleans()):
            place = place[key]
            continue
        if data.draw(st.booleans()):
            place[key] = data.draw(junk_json)
        else:
            del place[key]
        break
    for each in (WIRES[version].decode_request, WIRES[version].decode_reply, WIRES[version].reply_sender):
        _safe(each, _assemble(version, kind, layers))


def test_assembling_without_a_change_is_the_good_message() -> None:
    for version in (1, 2):
        assert _decode(version, "request", _assemble(version, "request", _layers(version, "request"))) == REQUEST
        assert _decode(version, "reply", _assemble(version, "reply", _layers(version, "reply"))) == REPLY


@pytest.mark.parametrize(
    ("version", "kind", "layer", "path", "value", "message"),
    [
        (1, "reply", 0, "headers", None, "headers of the transport is not a JSON object"),
        (2, "reply", 0, "headers", None, "headers of the transport is not a JSON object"),
        (1, "request", 0, "headers", None, "headers of the transport is not a JSON object"),
        (1, "reply", 2, "envelope", None, "envelope of the reply is not a JSON object"),
        (1, "request", 2, "envelope", None, "envelope of the request is not a JSON object"),
        (1, "reply", 1, "hash", "AAAA", "the hash of the reply is wrong"),
        (2, "reply", 1, "hash", "AAAA", "the hash of the reply is wrong"),
        (1, "reply", 1, "protocol", "choria:secure:request:1", "the secure reply is 'choria:secure:request:1'"),
        (2, "reply", 1, "protocol", "x", "the secure reply is 'x'"),
        (1, "reply", 2, "protocol", "x", "the reply is 'x'"),
        (2, "reply", 2, "protocol", "x", "the reply is 'x'"),
        (1, "reply", 2, "envelope.senderid", "", "senderid of the envelope of the reply is empty"),
        (2, "reply", 2, "sender", "", "sender of the reply is empty"),
        (1, "reply", 2, "envelope.time", 1 << 62, "the time is out of range"),
        (2, "reply", 2, "time", -(1 << 64), "the time is out of range"),
        (2, "reply", 2, "message", "no base64!", "message of the reply is not base64"),
        (2, "request", 1, "request", "%", "request of the secure request is not base64"),
        (1, "request", 1, "signature", "", "signature of the secure request is empty"),
        (2, "request", 1, "signature", "", "signature of the secure request is empty"),
        (1, "request", 1, "pubcert", "", "pubcert of the secure request is empty"),
        (2, "request", 1, "caller", "", "caller of the secure request is empty"),
        (1, "request", 2, "envelope.requestid", "0" * 27, "has 27 characters, not 32"),
        (1, "request", 2, "envelope.ttl", 29, "ttl of the request is 29, not 30 to 31536000 seconds"),
        (2, "request", 2, "ttl", 0, "ttl of the request is 0, not 1 to 31536000 seconds"),
        (2, "request", 2, "ttl", 10**30, "not 1 to 31536000 seconds"),
        (2, "request", 2, "time", 1 << 63, "the time is out of range"),
        (2, "request", 2, "filter", None, "filter of the request is not a JSON object"),
    ],
)
def test_what_is_refused_and_how(version: int, kind: str, layer: int, path: str, value: Any, message: str) -> None:
    layers = _layers(version, kind)
    *before, last = path.split(".")
    place = layers[layer]
    for step in before:
        place = place[step]
    place[last] = value
    kept: tuple[Any, Any, Any] = layers
    if layer == 1:
        kept = (layers[0], layers[1], KEEP)
    with pytest.raises(BadReply, match=re.escape(message)):
        _decode(version, kind, _assemble(version, kind, kept))


@pytest.mark.parametrize(("version", "ttl"), [(1, 30), (2, 1), (1, 31_536_000), (2, 31_536_000)])
def test_ttl_at_its_edges(version: int, ttl: int) -> None:
    wire = WIRES[version]
    request = evolve(REQUEST, ttl=ttl)
    assert wire.decode_request(encode_request(wire, request, url=URL)) == request


def test_version_2_request_without_a_filter_is_for_everybody() -> None:
    layers = _layers(2, "request")
    del layers[2]["filter"]
    assert _decode(2, "request", _assemble(2, "request", layers)) == evolve(REQUEST, filter=Filter())


def test_a_signature_on_a_version_2_reply_is_not_looked_at() -> None:
    layers = _layers(2, "reply")
    layers[1]["signature"], layers[1]["sender"] = "AAAA", "a.b.c"
    assert _decode(2, "reply", _assemble(2, "reply", layers)) == REPLY


@VERSIONS
def test_size_is_bounded(version: int) -> None:
    data = b" " * MAX_MESSAGE_BYTES + WIRES[version].encode_reply(REPLY, url=URL)
    for decode in (WIRES[version].decode_reply, WIRES[version].reply_sender):
        with pytest.raises(BadReply, match="more than the 4194304 that are read"):
            decode(data)


@VERSIONS
def test_discovery_wants_a_sender(version: int) -> None:
    transport, secure, message = _layers(version, "reply")
    del transport["headers"]["mc_sender" if version == 1 else "sender"]
    with pytest.raises(BadReply, match="sender of the headers of the transport is missing"):
        WIRES[version].reply_sender(_assemble(version, "reply", (transport, secure, message)))


def test_is_current_within_ttl_either_way() -> None:
    assert REQUEST.is_current(REQUEST.time_ns + 60 * NANOSECOND - 1)
    assert REQUEST.is_current(REQUEST.time_ns - 60 * NANOSECOND + 1)
    assert not REQUEST.is_current(REQUEST.time_ns + 60 * NANOSECOND)
    assert not REQUEST.is_current(REQUEST.time_ns - 60 * NANOSECOND)
