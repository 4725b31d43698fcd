"""The recorded conversations, replayed from the server's side against our provisioner.

Same actions, same order, same bodies up to what is random (nonces, keys, signatures, tokens, sealed keys). What differs
on purpose is in docs/differences.md and told here beside each case.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import define, evolve, field
from nacl.signing import SigningKey
from prometheus_client import CollectorRegistry
from trio.testing import MockClock

from provisioner.bus.memory import MemoryBroker
from provisioner.choria.rpc import decode_rpc_reply, decode_rpc_request
from provisioner.config import Config, Features
from provisioner.fleet.crew import Ended
from provisioner.metrics import Metrics
from provisioner.secret import Secret
from provisioner.service import Service
from provisioner.testing import Answer, Refusal, ScriptedHelper, ScriptedNode
from tests.conformance.recordings import recording, wire
from tests.flow.conftest import CONFIG

KEYS = Path(__file__).parents[1] / "fixtures" / "keys"
RECORDED_AT = 1_795_959_300.0
"""Unix seconds within the recordings: their tokens are verified then, never today."""

RANDOM = {"nonce", "server_jwt", "key", "ecdh_public"}


@pytest.fixture
def clock() -> MockClock:
    return MockClock(autojump_threshold=0)


@define
class Conversation:
    """What the Go program and one server said to each other: actions, data sent, answers."""

    identity: str
    calls: list[tuple[str, dict[str, Any]]] = field(factory=list)
    answers: dict[str, Answer] = field(factory=dict)


def conversation(name: str, identity: str, *, last: str = "restart") -> Conversation:
    """The last whole conversation with a server in a recording, up to its ``last`` action."""
    found = Conversation(identity)
    ids: dict[str, str] = {}
    spoken = wire(name)
    for one in recording(name):
        if one.is_event or not one.is_choria:
            continue
        if one.subject == f"provisioning.node.{identity}":
            request = spoken.decode_request(one.data)
            body = decode_rpc_request(request.payload)
            if body.action == "jwt":
                found.calls.clear()
            ids[request.id] = body.action
            found.calls.append((body.action, body.data))
        elif one.is_reply:
            reply = spoken.decode_reply(one.data)
            if reply.request in ids:
                answer = decode_rpc_reply(reply.payload)
                found.answers[ids[reply.request]] = (
                    answer.data if answer.statuscode == 0 else Refusal(answer.statusmsg, answer.statuscode)
                )
    assert found.calls
    assert found.calls[-1][0] == last
    return found


def signing(key: SigningKey) -> Any:
    """Answers ``gen25519`` as the server would: its own key, our nonce signed."""

    def gen25519(data: dict[str, Any]) -> dict[str, Any]:
        signature = key.sign(data["nonce"].encode()).signature.hex()
        return {"public_key": key.verify_key.encode().hex(), "directory": "/etc/choria", "signature": signature}

    return gen25519


async def replay(name: str, said: Conversation, config: Config, helper: dict[str, Any]) -> tuple[ScriptedNode, Ended]:
    """Lets our provisioner meet the recorded server."""
    broker, ended, done = MemoryBroker(), list[Ended](), trio.Event()

    def on_end(one: Ended) -> None:
        ended.append(one)
        done.set()

    answers: dict[str, Any] = dict(said.answers)
    if "gen25519" in answers:
        own = (KEYS / "issued-server.seed").read_text() if said.identity == "n1.example.net" else "07" * 32
        answers["gen25519"] = signing(SigningKey(bytes.fromhex(own)))
    spoken = wire(name)
    service = Service(
        config,
        identity="prov.example.net",
        bus=broker.connect(),
        wire=spoken,
        run_helper=ScriptedHelper(helper),
        metrics=Metrics(CollectorRegistry(), "testing"),
        on_end=on_end,
        clock=lambda: RECORDED_AT,
    )
    node = ScriptedNode(said.identity, answers, wire=spoken)
    async with node.on(broker.connect()), trio.open_nursery() as nursery:
        nursery.start_soon(service.run)
        with trio.fail_after(100):
            await done.wait()
        nursery.cancel_scope.cancel()
    return node, ended[0]


def without_random(data: dict[str, Any]) -> dict[str, Any]:
    """Random values are replaced by whether there is one."""
    return {key: bool(value) if key in RANDOM else value for key, value in data.items()}


def compare(node: ScriptedNode, said: Conversation) -> None:
    assert [action for action, _ in node.calls] == [action for action, _ in said.calls]
    for (action, ours), (_, theirs) in zip(node.calls, said.calls, strict=True):
        assert without_random(ours) == without_random(theirs), action
        assert list(ours) == list(theirs), f"order of keys of {action}"


def answer_that_gave(said: Conversation) -> dict[str, Any]:
    """The helper's answer that led to the recorded ``configure``."""
    data = dict(said.calls)["configure"]
    return {
        "configuration": json.loads(data["config"]),
        "certificate": data["certificate"],
        "ca": data["ca"],
        "action_policies": data["action_policies"],
        "opa_policies": data["opa_policies"],
    }


V1 = evolve(
    CONFIG,
    jwt_verify_cert=str(KEYS / "jwt-signer-rsa.pem"),
    features=Features(jwt=True, pki=True),
    cert_deny_list=(r"\.mcollective$", r"\.choria$"),
)
V2 = evolve(
    CONFIG,
    jwt_verify_cert=(KEYS / "issuer.public").read_text(),
    jwt_signing_key=KEYS / "signer.seed",
    jwt_signing_token=KEYS / "signer.jwt",
    features=Features(jwt=True, ed25519=True, upgrades=True),
    upgrades_repository="http://127.0.0.1:1/repo",
)


async def test_version_1_a_request_signed_by_the_site(clock: MockClock) -> None:
    said = conversation("wire-v1-pki", "n1.example.net")
    node, ended = await replay("wire-v1-pki", said, V1, answer_that_gave(said))
    assert ended.finished.outcome == "provisioned"
    compare(node, said)


async def test_version_1_a_private_key_from_the_helper(clock: MockClock) -> None:
    said = conversation("wire-v1-pki", "key1.example.net")
    helper = answer_that_gave(said) | {"key": (KEYS / "provisioner-v1.key").read_text()}
    node, ended = await replay("wire-v1-pki", said, V1, helper)
    assert ended.finished.outcome == "provisioned"
    compare(node, said)
    assert "DEK-Info: AES-256-CBC," in dict(node.calls)["configure"]["key"]


async def test_version_1_deferred(clock: MockClock) -> None:
    said = conversation("wire-v1-refused", "w1.example.net", last="jwt")
    # The recording has the wrong token, then a deferral, then the lock; the middle one is what is replayed.
    assert isinstance(said.answers["jwt"], Refusal)
    said = middle()
    node, ended = await replay("wire-v1-refused", said, V1, {"defer": True, "msg": "later"})
    assert ended.finished.outcome == "deferred"
    compare(node, said)


def middle() -> Conversation:
    found = Conversation("w1.example.net")
    spoken, ids = wire("wire-v1-refused"), dict[str, str]()
    for one in recording("wire-v1-refused"):
        if not 14 < one.at < 20 or one.is_event or not one.is_choria:
            continue
        if one.subject.startswith("provisioning.node."):
            request = spoken.decode_request(one.data)
            body = decode_rpc_request(request.payload)
            ids[request.id] = body.action
            found.calls.append((body.action, body.data))
        elif one.is_reply:
            reply = spoken.decode_reply(one.data)
            if reply.request in ids:
                found.answers[ids[reply.request]] = decode_rpc_reply(reply.payload).data
    return found


async def test_version_1_a_wrong_token_is_asked_once(clock: MockClock) -> None:
    """Differs on purpose: the Go program asks three times, which can't help."""
    said = Conversation("w1.example.net", answers={"jwt": Refusal("Incorrect provision token supplied")})
    node, ended = await replay("wire-v1-refused", said, evolve(V1, token=Secret("wrong")), {})
    assert (ended.finished.outcome, len(node.calls)) == ("refused", 1)
    assert node.calls[0] == ("jwt", {"token": "wrong"})


async def test_version_1_held_by_another_is_asked_once(clock: MockClock) -> None:
    """Differs on purpose: the Go program asks three times and reports an error."""
    said = conversation("wire-v1-refused", "w1.example.net", last="jwt")
    node, ended = await replay("wire-v1-refused", said, V1, {})
    assert (ended.finished.outcome, len(node.calls)) == ("locked", 1)


async def test_version_2_with_a_chained_server_token(clock: MockClock) -> None:
    said = conversation("wire-v2-issuer", "n1.example.net")
    node, ended = await replay("wire-v2-issuer", said, V2, answer_that_gave(said))
    assert ended.finished.outcome == "provisioned"
    compare(node, said)


async def test_version_2_deferred(clock: MockClock) -> None:
    said = conversation("wire-v2-issuer", "defer1.example.net", last="inventory")
    node, ended = await replay("wire-v2-issuer", said, V2, {"defer": True})
    assert ended.finished.outcome == "deferred"
    compare(node, said)


async def test_version_2_shut_down(clock: MockClock) -> None:
    said = conversation("wire-v2-issuer", "shutdown1.example.net", last="shutdown")
    node, ended = await replay("wire-v2-issuer", said, V2, {"shutdown": True})
    assert ended.finished.outcome == "shut_down"
    compare(node, said)


async def test_version_2_a_mandatory_upgrade_that_fails(clock: MockClock) -> None:
    said = conversation("wire-v2-issuer", "upgrade1.example.net", last="release_update")
    node, ended = await replay("wire-v2-issuer", said, V2, {"upgrade": "0.31.0", "configuration": {"a": "b"}})
    assert ended.finished.outcome == "upgrade_failed"
    assert "connection refused" in ended.finished.text
    compare(node, said)


async def test_version_2_a_policy_with_a_wrong_extension_is_never_sent(clock: MockClock) -> None:
    """Differs on purpose: the Go program sends it five times and reports ``context canceled``."""
    said = conversation("wire-v2-issuer", "wrongext1.example.net", last="configure")
    node, ended = await replay("wire-v2-issuer", said, V2, answer_that_gave(said))
    assert ended.finished.outcome == "bad_configuration"
    assert "rpcutil.txt" in ended.finished.text
    assert [action for action, _ in node.calls] == ["jwt", "gen25519", "inventory"]
