"""One server, every end of its cycle: what is called, what is counted, what becomes of it (spec: outcomes 1, 2)."""

import json
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from provisioner.bus.memory import MemoryBroker, duplicating
from provisioner.choria.rpc import encode_rpc_reply
from provisioner.errors import HelperFailed, HelperTooSlow
from provisioner.testing import INVENTORY, Refusal, ScriptedHelper, ScriptedNode
from tests.flow.conftest import Serve


async def test_a_server_is_found_configured_and_restarted(serve: Serve, broker: MemoryBroker, clock: MockClock) -> None:
    async with ScriptedNode("n1.example.net").on(broker.connect()) as node, serve() as running:
        assert await running.outcomes(1) == ["provisioned"]
        assert [action for action, _ in node.calls] == ["inventory", "configure", "restart"]
        assert node.calls[1][1] == {
            "action_policies": {},
            "ca": "",
            "certificate": "",
            "config": '{"plugin.choria.server.provision":"0"}',
            "ecdh_public": "",
            "key": "",
            "opa_policies": {},
            "server_jwt": "",
            "ssldir": "",
            "token": "s3cret",
        }
        assert node.calls[2][1] == {"splay": 1, "token": "s3cret"}
        request = node.requests[0]
        assert (request.sender, request.caller, request.collective) == (
            "prov.example.net",
            "choria=prov.example.net",
            "provisioning",
        )
        assert (request.agent, request.filter.agent, request.ttl) == ("rpcutil", ("rpcutil",), 60)
        given = running.helper.inputs[0]
        assert list(given) == ["identity", "csr", "ed25519_pubkey", "inventory", "jwt"]
        assert (given["identity"], given["csr"], given["jwt"]) == ("n1.example.net", None, None)
        assert json.loads(given["inventory"]) == INVENTORY
        assert running.metric("discovered") == 1
        assert running.metric("event_discovered") == 0
        assert running.metric("provisioned") == 1
        assert running.metric("provision_errors") == 0
        assert running.metric("paused") == 0
        assert running.metric("rpc_time_count", rpc="choria_provision#configure") == 1
        assert running.metric("helper_time_count") == 1
        assert running.metric("outcomes", outcome="provisioned") == 1


async def test_an_event_is_enough(serve: Serve, broker: MemoryBroker, clock: MockClock) -> None:
    async with ScriptedNode("n1.example.net", discoverable=False).on(broker.connect()) as node, serve() as running:
        await wait_all_tasks_blocked()
        node.start()
        assert await running.outcomes(1) == ["provisioned"]
        assert running.metric("event_discovered") == 1
        assert running.metric("discovered") == 0


async def test_the_grace_after_a_restart_is_sixty_seconds(serve: Serve, broker: MemoryBroker, clock: MockClock) -> None:
    async with ScriptedNode("n1.example.net").on(broker.connect()) as node, serve(interval=3600.0) as running:
        await running.outcomes(1)
        await trio.sleep(30)
        node.start()
        await trio.sleep(1)
        assert len(running.helper.inputs) == 1
        await trio.sleep(31)
        node.start()
        assert await running.outcomes(2) == ["provisioned", "provisioned"]


async def test_deferred(serve: Serve, broker: MemoryBroker, clock: MockClock) -> None:
    helper = ScriptedHelper({"defer": True, "shutdown": True, "msg": "not yet"})
    async with ScriptedNode("n1.example.net").on(broker.connect()) as node, serve(helper=helper) as running:
        assert await running.outcomes(2) == ["deferred", "deferred"]  # asked again at the next discovery
        assert {action for action, _ in node.calls} == {"inventory"}
        assert running.metric("provision_errors") == 0
        assert running.ended[0].finished.text == "not yet"


async def test_defer_for_is_honoured(serve: Serve, broker: MemoryBroker, clock: MockClock) -> None:
    helper = ScriptedHelper({"defer": True, "defer_for": "10m"})
    async with ScriptedNode("n1.example.net").on(broker.connect()), serve(helper=helper) as running:
        await running.outcomes(1)
        began = trio.current_time()
        await running.outcomes(2)
        assert 600 <= trio.current_time() - began < 665


async def test_shut_down(serve: Serve, broker: MemoryBroker, clock: MockClock) -> None:
    helper = ScriptedHelper({"shutdown": True, "msg": "retired"})
    async with ScriptedNode("n1.example.net").on(broker.connect()) as node, serve(helper=helper) as running:
        assert await running.outcomes(1) == ["shut_down"]
        assert node.calls[-1] == ("shutdown", {"token": "s3cret"})
        assert running.metric("helper_shutdown_requests") == 1
        assert running.metric("provisioned") == 0


async def test_a_refused_shutdown_is_an_error(serve: Serve, broker: MemoryBroker, clock: MockClock) -> None:
    node = ScriptedNode("n1.example.net", {"shutdown": Refusal("no", 5)})
    async with node.on(broker.connect()), serve(helper=ScriptedHelper({"shutdown": True})) as running:
        assert await running.outcomes(1) == ["refused"]
        assert running.metric("helper_shutdown_requests") == 0
        assert running.metric("rpc_errors", rpc="choria_provision#shutdown") == 1


async def test_held_by_another_provisioner(serve: Serve, broker: MemoryBroker, clock: MockClock) -> None:
    node = ScriptedNode("n1.example.net", {"configure": Refusal("Could not obtain provisioning lock")})
    async with node.on(broker.connect()), serve() as running:
        assert await running.outcomes(1) == ["locked"]
        assert [action for action, _ in node.calls] == ["inventory", "configure"]  # one call, no storm
        assert running.metric("provision_errors") == 0
        assert running.metric("rpc_errors", rpc="choria_provision#configure") == 0
        node.start()
        await trio.sleep(1)
        assert len(running.ended) == 1  # an event doesn't bring it back before the next discovery
        assert await running.outcomes(2) == ["locked", "locked"]


@pytest.mark.parametrize(
    ("text", "code", "tries"),
    [
        ("Incorrect provision token supplied", 1, 1),
        ("Unknown action configure for agent choria_provision", 2, 1),
        ("Validation failed: x", 4, 1),
        ("Could not write config: disk full", 1, 5),
    ],
)
async def test_refused_with_the_servers_own_words(
    serve: Serve, broker: MemoryBroker, clock: MockClock, text: str, code: int, tries: int
) -> None:
    node = ScriptedNode("n1.example.net", {"configure": Refusal(text, code)})
    async with node.on(broker.connect()), serve() as running:
        assert await running.outcomes(1) == ["refused"]
        assert text in running.ended[0].finished.text
        assert sum(action == "configure" for action, _ in node.calls) == tries
        assert running.metric("rpc_errors", rpc="choria_provision#configure") == 1
        assert running.metric("provision_errors") == 1


async def test_silent_four_times_then_answering(serve: Serve, broker: MemoryBroker, clock: MockClock) -> None:
    left = 4

    def inventory(data: dict[str, Any]) -> dict[str, Any] | None:
        nonlocal left
        left -= 1
        return INVENTORY if left < 0 else None

    async with ScriptedNode("n1.example.net", {"inventory": inventory}).on(broker.connect()), serve() as running:
        assert await running.outcomes(1) == ["provisioned"]
        assert running.metric("rpc_errors", rpc="rpcutil#inventory") == 0


async def test_silent_five_times(
    serve: Serve, broker: MemoryBroker, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with ScriptedNode("n1.example.net", {"inventory": None}).on(broker.connect()) as node, serve() as running:
        assert await running.outcomes(1) == ["no_reply"]
        assert len(node.calls) == 5
        assert running.metric("rpc_errors", rpc="rpcutil#inventory") == 1
        lines = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
        assert lines == [
            "Could not provision n1.example.net: Fetching Inventory: no answer to inventory within 4 s (no_reply)"
        ]


@pytest.mark.parametrize(
    "data", [{}, {"version": 1, "facts": {}}, {"version": "1", "facts": []}, {"version": None, "facts": {}}]
)
async def test_an_answer_that_cannot_be_used(
    serve: Serve, broker: MemoryBroker, clock: MockClock, data: dict[str, Any]
) -> None:
    async with ScriptedNode("n1.example.net", {"inventory": data}).on(broker.connect()) as node, serve() as running:
        assert await running.outcomes(1) == ["bad_reply"]
        assert len(node.calls) == 5
        assert running.helper.inputs == []


@pytest.mark.parametrize("error", [HelperFailed("exited with code 3"), HelperTooSlow("not finished after 10 s")])
async def test_a_failing_helper(serve: Serve, broker: MemoryBroker, clock: MockClock, error: Exception) -> None:
    async with (
        ScriptedNode("n1.example.net").on(broker.connect()) as node,
        serve(helper=ScriptedHelper(error)) as running,
    ):
        assert await running.outcomes(1) == [error.reason]  # type: ignore[attr-defined]
        assert {action for action, _ in node.calls} == {"inventory"}
        assert running.metric("helper_errors") == 1
        assert running.metric("provision_errors") == 1


@pytest.mark.parametrize(
    "reply",
    [
        {},
        {"configuration": {}},
        {"configuration": {"a": "b\nplugin.choria.server.provision=1"}},
        {"configuration": {"a b": "c"}},
        {"configuration": {"plugin.choria.server.provision": "yes"}},
        {"configuration": {"a": "b"}, "certificate": "-----BEGIN CERTIFICATE-----"},
        {"configuration": {"a": "b"}, "action_policies": {"../x.policy": "x"}},
        {"configuration": {"a": "b"}, "opa_policies": {"x.policy": "x"}},
    ],
)
async def test_a_configuration_that_cannot_be_sent(
    serve: Serve, broker: MemoryBroker, clock: MockClock, reply: dict[str, Any]
) -> None:
    async with (
        ScriptedNode("n1.example.net").on(broker.connect()) as node,
        serve(helper=ScriptedHelper(reply)) as running,
    ):
        assert await running.outcomes(1) == ["bad_configuration"]
        assert {action for action, _ in node.calls} == {"inventory"}


async def test_an_answer_by_another_is_ignored(serve: Serve, broker: MemoryBroker, clock: MockClock) -> None:
    node = ScriptedNode("n1.example.net")

    def impostor(data: dict[str, Any]) -> dict[str, Any]:
        node.reply(node.requests[-1], encode_rpc_reply("inventory", {"version": "6.6.6"}), sender="evil.example.net")
        return INVENTORY

    node.answers["inventory"] = impostor
    async with node.on(broker.connect()), serve() as running:
        assert await running.outcomes(1) == ["provisioned"]
        assert "6.6.6" not in running.helper.inputs[0]["inventory"]


@pytest.mark.parametrize("when", ["together", "later"])
async def test_two_different_answers_end_the_cycle(
    serve: Serve, broker: MemoryBroker, clock: MockClock, when: str
) -> None:
    node = ScriptedNode("n1.example.net")

    def forge() -> None:
        node.reply(node.requests[0], encode_rpc_reply("inventory", INVENTORY | {"version": "6.6.6"}))

    def inventory(data: dict[str, Any]) -> dict[str, Any]:
        if when == "together":
            forge()
        return INVENTORY

    def helper(given: dict[str, Any]) -> dict[str, Any]:
        forge()
        return {"configuration": {"a": "b"}}

    node.answers["inventory"] = inventory
    scripted = ScriptedHelper(helper if when == "later" else {"configuration": {"a": "b"}}, seconds=0.1)
    async with node.on(broker.connect()), serve(helper=scripted) as running:
        assert await running.outcomes(1) == ["answered_twice"]
        assert "restart" not in {action for action, _ in node.calls}


async def test_the_same_answer_twice_is_harmless(serve: Serve, broker: MemoryBroker, clock: MockClock) -> None:
    broker.faults.append(duplicating("provisioning.reply.>"))
    async with ScriptedNode("n1.example.net").on(broker.connect()), serve() as running:
        assert await running.outcomes(1) == ["provisioned"]


async def test_a_bug_in_one_cycle_is_that_servers_end_alone(
    serve: Serve, broker: MemoryBroker, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    def helper(given: dict[str, Any]) -> dict[str, Any]:
        if given["identity"] == "n1.example.net":
            raise ZeroDivisionError
        return {"configuration": {"a": "b"}}

    async with (
        ScriptedNode("n1.example.net").on(broker.connect()),
        ScriptedNode("n2.example.net").on(broker.connect()),
        serve(helper=ScriptedHelper(helper)) as running,
    ):
        await running.outcomes(2)
        assert running.words("n1.example.net") == ["internal_error"]
        assert running.words("n2.example.net") == ["provisioned"]
        assert sum(r.exc_info is not None for r in caplog.records) == 1


async def test_the_connection_goes_away_under_a_cycle(serve: Serve, broker: MemoryBroker, clock: MockClock) -> None:
    node = ScriptedNode("n1.example.net", {"configure": None})
    async with node.on(broker.connect()), serve() as running:
        await node.called("configure")
        broker.stop()
        broker.start()
        assert await running.outcomes(1) == ["connection_lost"]
        node.answers.clear()
        assert (await running.outcomes(2))[1] == "provisioned"
