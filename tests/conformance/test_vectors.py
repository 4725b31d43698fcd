"""The worked examples of the protocol, each with the bytes it must give."""

import base64
import json
from typing import Any

import pytest

from provisioner.choria import ids, rpc, subjects
from provisioner.choria.filter import Filter
from provisioner.choria.security import SeedSigner, sign_nonce
from provisioner.choria.v1 import V1
from provisioner.choria.v2 import V2
from provisioner.choria.wire import DISCOVERY_PONG, NANOSECOND, Reply, Request
from provisioner.secret import Secret
from tests.asking import encode_request

SEED = Secret("02" * 32)
KSUID = "2YBXZHqCjn9u9XPqNaTCk9OXKKF"
HEX_ID = "0123456789abcdef0123456789abcdef"
TOKEN = "e30.e30.sig"
JWT_BODY = rpc.encode_rpc_request("choria_provision", "jwt", {"token": "s3cret"})


def _request(id_: str, caller: str, payload: bytes = JWT_BODY) -> Request:
    return Request(
        id=id_,
        agent="choria_provision",
        collective="provisioning",
        sender="prov.example.net",
        caller=caller,
        ttl=60,
        time_ns=1_700_000_000 * NANOSECOND,
        filter=Filter(agent=("choria_provision",)),
        payload=payload,
        reply_to=subjects.reply(caller, id_),
    )


def _open(data: bytes) -> tuple[dict[str, Any], str]:
    transport = json.loads(data)
    body = base64.b64decode(transport.pop("data")).decode()
    return transport, body


def test_version_1_request_without_protocol_security() -> None:
    caller = "choria=rip.mcollective"
    request = _request(HEX_ID, caller)
    transport, body = _open(encode_request(V1(caller), request, url="nats://localhost:4222"))
    message = (
        '{"protocol":"choria:request:1","message":"{\\"agent\\":\\"choria_provision\\",\\"action\\":\\"jwt\\",'
        '\\"data\\":{\\"token\\":\\"s3cret\\"}}","envelope":{"requestid":"0123456789abcdef0123456789abcdef",'
        '"senderid":"prov.example.net","callerid":"choria=rip.mcollective","collective":"provisioning",'
        '"agent":"choria_provision","ttl":60,"time":1700000000,"filter":{"fact":[],"cf_class":[],'
        '"agent":["choria_provision"],"identity":[],"compound":[]}}}'
    )
    assert json.loads(body)["message"] == message
    assert body == (
        '{"protocol":"choria:secure:request:1","message":' + json.dumps(message) + ',"signature":"insecure",'
        '"pubcert":"insecure"}'
    )
    assert transport == {
        "protocol": "choria:transport:1",
        "headers": {
            "reply-to": f"provisioning.reply.37bdf08389145a56c13096c178802d3b.{HEX_ID}",
            "mc_sender": "prov.example.net",
            "seen-by": [["nats://localhost:4222", "prov.example.net", "nats://localhost:4222"]],
        },
    }


def test_version_1_reply_hash() -> None:
    payload = rpc.encode_rpc_reply("jwt", {"jwt": "x.y.z", "ecdh_public": "00"})
    reply = Reply(HEX_ID, "choria_provision", "n1.example.net", 1_700_000_001 * NANOSECOND, payload)
    wire = V1("choria=n1.example.net")
    data = wire.encode_reply(reply, url="nats://localhost:4222")
    transport, body = _open(data)
    assert json.loads(body)["hash"] == "9fE0xfjqOipNTzfGUEkWTMLDxGyKEaZfnMowBoa83ak="
    assert "reply-to" not in transport["headers"]
    assert wire.decode_reply(data) == reply


def test_version_2_request_and_signature() -> None:
    caller = "choria=provisioner_signer"
    wire = V2(caller, SeedSigner(TOKEN, SEED))
    transport, body = _open(encode_request(wire, _request(KSUID, caller), url="nats://broker.example.net:4222"))
    inner = (
        '{"protocol":"io.choria.protocol.v2.request","message":"eyJhZ2VudCI6ImNob3JpYV9wcm92aXNpb24iLCJhY3Rpb24iOiJqd3'
        'QiLCJkYXRhIjp7InRva2VuIjoiczNjcmV0In19","id":"2YBXZHqCjn9u9XPqNaTCk9OXKKF","sender":"prov.example.net",'
        '"caller":"choria=provisioner_signer","collective":"provisioning","agent":"choria_provision","ttl":60,'
        '"time":1700000000000000000,"filter":{"fact":[],"cf_class":[],"agent":["choria_provision"],"identity":[],'
        '"compound":[]}}'
    )
    signature = "TST6w2JMEUmfYySLMgoWaD7GzFMzpiqs3UgI88fWC2X12Z17EVlft/vRRJlDwKjiyDRwKfxzQvGrDqKpTw/ZCg=="
    assert json.loads(body) == {
        "protocol": "io.choria.protocol.v2.secure_request",
        "request": base64.b64encode(inner.encode()).decode(),
        "signature": signature,
        "caller": TOKEN,
    }
    assert transport == {
        "protocol": "io.choria.protocol.v2.transport",
        "headers": {
            "reply": f"provisioning.reply.9cfa4a5b5c52a6298349d8414b009862.{KSUID}",
            "sender": "prov.example.net",
            "trace": [["nats://broker.example.net:4222", "prov.example.net", "nats://broker.example.net:4222"]],
        },
    }


def test_version_2_discovery_reply_hash() -> None:
    reply = Reply(KSUID, "discovery", "n1.example.net", 1_700_000_001 * NANOSECOND, DISCOVERY_PONG)
    wire = V2("n1", SeedSigner(TOKEN, SEED))
    data = wire.encode_reply(reply, url="nats://localhost:4222")
    _, body = _open(data)
    secure = json.loads(body)
    assert secure["hash"] == "25Zb0Ie1nnleUo9+TLRGLQcYYPQIJx74WJAZH6FIA+w="
    assert base64.b64decode(secure["reply"]).decode() == (
        '{"protocol":"io.choria.protocol.v2.reply","message":"cG9uZw==","request":"2YBXZHqCjn9u9XPqNaTCk9OXKKF",'
        '"sender":"n1.example.net","agent":"discovery","time":1700000001000000000}'
    )
    assert wire.decode_reply(data) == reply


def test_broker_nonce() -> None:
    assert sign_nonce(SEED, "MZ6jMVYnCxDbtQ8") == (
        "VmiP5jgJ53unoDG6GR23wOc_lj4oFooLr2sHMVuzFxG3jnsRqPQ95LQvg9t2l18a4ul8KcL9Z0VxmQsGnsCVBg"
    )


@pytest.mark.parametrize(
    ("seconds", "payload", "text"),
    [
        (0x0669F7EF + 1_400_000_000, bytes.fromhex("B5A1CD34B5F99D1154FB6853345C9735"), "0ujtsYcgvSTl8PAuAdqWYSMnLOv"),
        (1_690_000_000, bytes(16), "2SuceJJSOvYKDQeokIzeWOMm9Sq"),
        (1_700_000_000, bytes(range(16)), KSUID),
        (1_400_000_000, bytes(16), "0" * 27),
        ((1 << 32) - 1 + 1_400_000_000, b"\xff" * 16, "aWgEPTl1tmebfsQzFP4bxwgy80V"),
    ],
)
def test_ksuid_both_ways(seconds: int, payload: bytes, text: str) -> None:
    assert ids.ksuid(seconds, payload) == text
    assert ids.parse_ksuid(text) == (seconds, payload)


def test_go_escapes_html_in_every_layer() -> None:
    payload = rpc.encode_rpc_request("a", "b", {"x": "<b> & \u2028\u2029 é \x07\n"})
    assert payload == (
        b'{"agent":"a","action":"b","data":{"x":"\\u003cb\\u003e \\u0026 \\u2028\\u2029 \xc3\xa9 \\u0007\\n"}}'
    )
    caller = "choria=x"
    _, body = _open(encode_request(V1(caller), _request(HEX_ID, caller, payload), url="nats://h:1"))
    assert "\\\\\\\\u003cb" in body
    assert not set("<>&") & set(body)
