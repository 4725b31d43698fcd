"""A simulated server's agents: each check, its place in the order, its words, and what it leaves behind."""

import json
from random import Random
from typing import Any

import pytest
from attrs import evolve

from provisioner.choria.rpc import RPCReply, RPCRequest, decode_rpc_reply
from provisioner.secret import Secret
from provisioner.simulator.keys import RequestPool
from provisioner.simulator.node import Node, go_duration
from provisioner.simulator.site import Answer, Leave, Site, Tell
from provisioner.trust.challenge import verify_challenge
from provisioner.trust.request import DenyList, verify_request
from provisioner.trust.sealing import seal_private_key
from tests.conformance.recordings import key

SITE = Site(token="s3cret", jwt="a.b.c", requests=RequestPool(1))
CONFIG = '{"identity":"n1.example.net","plugin.choria.server.provision":"0"}'
NOW = 1_700_000_000.0
LOCKING = ("configure", "gen25519", "gencsr", "jwt", "release_update")
ALL = (*LOCKING, "restart", "shutdown", "reprovision")


def _node(site: Site = SITE, **more: Any) -> Node:
    return Node("n1.example.net", site, Random(1), **more)


def _answer(node: Node, action: str, data: dict[str, Any] | None = None, *, who: str = "prov", now: float = NOW,
            agent: str = "choria_provision") -> Answer:  # fmt: skip
    inputs = {"token": "s3cret"} if data is None else data
    return node.answer(RPCRequest(agent, action, inputs), "id", who, f"choria={who}", now)


def _ask(node: Node, action: str, data: dict[str, Any] | None = None, **more: Any) -> RPCReply:
    body = _answer(node, action, data, **more).body
    assert body is not None
    return decode_rpc_reply(body)


def _refusal(node: Node, action: str, data: dict[str, Any] | None = None, **more: Any) -> str:
    reply = _ask(node, action, data, **more)
    assert (reply.action, reply.statuscode, reply.data) == (action, 1, {})
    return reply.statusmsg


# --- checks that actions share ----------------------------------------------------------------------------------------


def test_unknown_actions_and_agents() -> None:
    reply = _ask(_node(), "nonsense")
    assert (reply.statuscode, reply.statusmsg) == (2, "Unknown action nonsense for agent choria_provision")
    assert _ask(_node(), "info", agent="choria_util").statuscode == 2


@pytest.mark.parametrize("action", LOCKING)
def test_the_lock_comes_before_all_else(action: str) -> None:
    node = _node(evolve(SITE, can_update=False), provisioning=False)
    _ask(node, "jwt", who="first")  # refused, and yet it took the lock
    assert _refusal(node, action, {"token": 7}, who="second") == "Could not obtain provisioning lock"


@pytest.mark.parametrize("action", ["restart", "shutdown", "reprovision"])
def test_some_actions_take_no_lock(action: str) -> None:
    node = _node()
    _ask(node, "jwt", who="first")
    assert "lock" not in _ask(node, action, who="second").statusmsg


def test_the_lock_lasts_as_long_as_the_site_says_after_the_last_call() -> None:
    node = _node(evolve(SITE, lock_seconds=10.0))
    assert _ask(node, "jwt", who="first").statuscode == 0
    assert _ask(node, "jwt", who="first", now=NOW + 9).statuscode == 0
    assert _refusal(node, "jwt", who="second", now=NOW + 18.9) == "Could not obtain provisioning lock"
    assert _ask(node, "jwt", who="second", now=NOW + 19).statuscode == 0
    assert _refusal(node, "jwt", who="first", now=NOW + 19) == "Could not obtain provisioning lock"
    node.start()
    assert _ask(node, "jwt", who="first", now=NOW + 19).statuscode == 0


@pytest.mark.parametrize(
    ("action", "text"),
    [
        *((action, "Cannot reconfigure a server that is not in provisioning mode") for action in LOCKING[:4]),
        ("release_update", "Cannot update a server that is not in provisioning mode"),
    ],
)
def test_mode_is_checked_before_the_inputs(action: str, text: str) -> None:
    assert _refusal(_node(provisioning=False), action, {"token": 7}) == text


def test_restart_and_shutdown_work_outside_of_provisioning_mode_when_a_token_is_set() -> None:
    open_site = evolve(SITE, token="")
    for action in ("restart", "shutdown"):
        assert _ask(_node(provisioning=False), action).statuscode == 0
        assert _refusal(_node(open_site, provisioning=False), action) == (
            f"Cannot {action} a server that is not in provisioning mode or with no token set"
        )


@pytest.mark.parametrize("action", [action for action in ALL if action != "reprovision"])
def test_inputs_are_parsed_before_the_token_is_checked(action: str) -> None:
    reply = _ask(_node(), action, {"token": 7})
    assert reply.statuscode == 4
    assert reply.statusmsg == (
        f"Could not parse request data for choria_provision#{action}: json: cannot unmarshal int into field token"
    )
    assert _refusal(_node(), action, {"token": "other"}) == "Incorrect provision token supplied"
    assert _refusal(_node(), action, {}) == "Incorrect provision token supplied"
    assert _refusal(_node(), action, {"token": None}) == "Incorrect provision token supplied"


@pytest.mark.parametrize("data", [{"action_policies": {"a": 1}}, {"action_policies": []}, {"config": {}}])
def test_types_of_configure(data: dict[str, Any]) -> None:
    assert _ask(_node(), "configure", {"token": "s3cret"} | data).statuscode == 4


def test_an_empty_site_token_takes_any() -> None:
    assert _ask(_node(evolve(SITE, token="")), "jwt", {"token": "whatever"}).statuscode == 0


def test_what_was_asked_and_done_is_counted() -> None:
    node = _node()
    _ask(node, "jwt")
    _ask(node, "jwt", {"token": "other"})
    _ask(node, "inventory", {}, agent="rpcutil")
    assert node.received.asked == {"jwt": 2, "inventory": 1}
    assert node.received.done == {"jwt": 1, "inventory": 1}


# --- each action ------------------------------------------------------------------------------------------------------


def test_jwt_gives_a_fresh_key_each_time() -> None:
    node = _node()
    assert node.exchange_public == ""
    first, second = _ask(node, "jwt"), _ask(node, "jwt")
    assert first.data["jwt"] == second.data["jwt"] == "a.b.c"
    assert first.data["ecdh_public"] != second.data["ecdh_public"]
    assert second.data["ecdh_public"] == node.exchange_public


def test_gen25519_signs_the_nonce_and_keeps_the_seed() -> None:
    node = _node(files={"server.jwt": "old"})
    reply = _ask(node, "gen25519", {"token": "s3cret", "nonce": "0123"})
    assert list(reply.data) == ["public_key", "directory", "signature"]
    assert reply.data["directory"] == "/etc/choria"
    verify_challenge(reply.data["public_key"], reply.data["signature"], "0123")
    assert len(node.files["server.seed"]) == 64
    assert "server.jwt" not in node.files


def test_gencsr_makes_a_real_request() -> None:
    node = _node()
    reply = _ask(node, "gencsr", {"token": "s3cret", "cn": "n1.example.net", "O": "Example"})
    assert reply.data["ssldir"] == "/etc/choria/ssl"
    verify_request(reply.data["csr"], "n1.example.net", DenyList([]), public_key=reply.data["public_key"])
    assert reply.data["public_key"].startswith("-----BEGIN PUBLIC KEY-----\nMIIBCg")
    assert node.files["ssl/csr.pem"] == reply.data["csr"]
    default = _ask(node, "gencsr").data["csr"]
    verify_request(default, "n1.example.net", DenyList([]))
    assert _refusal(node, "gencsr", {"token": "s3cret", "C": "toolong"}).startswith("Could not create CSR: ")


def test_configure_writes_everything() -> None:
    node = _node(files={"policies/old.policy": "x", "policies/rego/old.rego": "x"})
    public = _ask(node, "jwt").data["ecdh_public"]
    sealed = seal_private_key(Secret(key("jwt-signer-rsa.key")), public)
    reply = _answer(
        node,
        "configure",
        {
            "token": "s3cret",
            "config": CONFIG,
            "certificate": "CERT",
            "ca": "CA",
            "ssldir": "/etc/choria/ssl",
            "key": sealed.key,
            "ecdh_public": sealed.ecdh_public,
            "server_jwt": "x.y.z",
            "action_policies": {"a.policy": "allow", "empty.policy": ""},
            "opa_policies": {"main.rego": "package"},
        },
    )
    assert reply.body is not None
    assert decode_rpc_reply(reply.body).data == {"message": "Wrote 3 lines to /etc/choria/server.cfg"}
    assert reply.steps == (Tell("provisioned"),)
    private = node.files.pop("ssl/private.pem")
    assert private.split() == key("jwt-signer-rsa.key").split()
    assert node.files == {
        "server.cfg": "# configuration file written in request id from choria=prov (prov)\n"
        "identity=n1.example.net\nplugin.choria.server.provision=0\n",
        "ssl/certificate.pem": "CERT",
        "ssl/ca.pem": "CA",
        "server.jwt": "x.y.z",
        "policies/a.policy": "allow",
        "policies/rego/main.rego": "package",
    }
    assert node.received.configurations == [json.loads(CONFIG)]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({}, "Did not receive any configuration to write, cannot write a empty configuration file"),
        ({"config": CONFIG, "key": "k"}, "EDCH Public Key not supplied while providing a private key"),
        ({"config": "x"}, "Could not decode configuration data: Expecting value at character 0"),
        ({"config": "[]"}, "Could not decode configuration data: an object with text values is wanted"),
        ({"config": '{"a":1}'}, "Could not decode configuration data: an object with text values is wanted"),
        (
            {"config": CONFIG, "key": "k", "ecdh_public": "00", "certificate": "c", "ca": "a", "ssldir": "/s"},
            "TLS Setup Failed: could not decrypt private key: ",
        ),
        (
            {"config": CONFIG, "action_policies": {"x.txt": ""}},
            'Could not save Action Policies: expected "x.txt" to have .policy extension',
        ),
        (
            {"config": CONFIG, "opa_policies": {"x.policy": ""}},
            'Could not save Open Policy Agent Policies: expected "x.policy" to have .rego extension',
        ),
    ],
)
def test_configure_refuses(data: dict[str, Any], text: str) -> None:
    assert _refusal(_node(), "configure", {"token": "s3cret"} | data).startswith(text)


def test_configure_drops_a_key_without_its_certificate_in_silence() -> None:
    node = _node()
    data = {"token": "s3cret", "config": CONFIG, "key": "k", "ecdh_public": "00", "ca": "a", "ssldir": "/s"}
    assert _ask(node, "configure", data).statuscode == 0
    assert list(node.files) == ["server.cfg"]


def test_policies_stay_when_none_are_sent() -> None:
    node = _node(files={"policies/old.policy": "x", "policies/rego/old.rego": "y"})
    _ask(node, "configure", {"token": "s3cret", "config": CONFIG})
    assert (node.files["policies/old.policy"], node.files["policies/rego/old.rego"]) == ("x", "y")


def test_restart_is_refused_while_the_file_enables_provisioning() -> None:
    node = _node()
    text = "Configuration /etc/choria/server.cfg enables provisioning, restart cannot continue"
    assert _refusal(node, "restart") == text
    _ask(node, "configure", {"token": "s3cret", "config": '{"plugin.choria.server.provision":"Yes"}'})
    assert _refusal(node, "restart") == text


def test_restart() -> None:
    node = _node()
    _ask(node, "configure", {"token": "s3cret", "config": CONFIG})
    answer = _answer(node, "restart", {"token": "s3cret", "splay": 1})
    assert answer.body is not None
    assert decode_rpc_reply(answer.body).data == {"message": "Restarting Choria Server after 2s"}
    assert answer.steps == (Tell("shutdown"), Leave(2.0))
    assert _answer(node, "jwt").body is None  # the restart holds the agent's mutex
    assert _ask(node, "inventory", {}, agent="rpcutil").statuscode == 0
    assert not node.start()


def test_restart_splay() -> None:
    delays = set()
    for seed in range(200):
        node = Node("n1", SITE, Random(seed))
        _ask(node, "configure", {"token": "s3cret", "config": CONFIG})
        (_, leave) = _answer(node, "restart", {"token": "s3cret", "splay": 0}).steps
        assert isinstance(leave, Leave)
        delays.add(leave.after)
    assert delays == {2.0 + more for more in range(10)}
    assert _ask(_node(), "restart", {"token": "s3cret", "splay": 1.5}).statuscode == 4
    assert _refusal(_node(), "restart", {"token": "s3cret", "splay": -1}) == "splay must not be negative"


def test_without_the_key_a_restarted_server_is_in_provisioning_mode_again() -> None:
    node = _node(evolve(SITE, comes_back=True))
    _ask(node, "configure", {"token": "s3cret", "config": '{"identity":"n1"}'})
    assert _answer(node, "restart", {"token": "s3cret", "splay": 1}).steps == (Tell("shutdown"), Leave(2.0, 1.0))
    assert node.start()
    assert _ask(node, "jwt").statuscode == 0


def test_shutdown() -> None:
    answer = _answer(_node(), "shutdown")
    (leave,) = answer.steps
    assert isinstance(leave, Leave)
    assert leave == Leave(leave.after, farewell=True)
    assert 0 <= leave.after <= 9
    assert answer.body is not None
    assert decode_rpc_reply(answer.body).data == {"message": f"Shutting Choria Server down after {leave.after:g}s"}


def test_reprovision() -> None:
    assert _refusal(_node(), "reprovision") == (
        "Server is already in provisioning mode, cannot enable provisioning mode again"
    )
    node = _node(provisioning=False)
    shutdown, leave = _answer(node, "reprovision").steps
    assert shutdown == Tell("shutdown")
    assert isinstance(leave, Leave)
    assert 2 <= leave.after <= 11
    assert node.files["server.cfg"] == "plugin.choria.server.provision=1\nloglevel=debug\n"
    assert _answer(node, "shutdown").body is None
    assert node.start()


UPDATE = {"token": "s3cret", "repository": "http://127.0.0.1:1/repo", "version": "0.31.0"}


@pytest.mark.parametrize(("upgrade", "version"), [("ok", "0.31.0"), ("nothing", "0.30.2")])
def test_release_update(upgrade: str, version: str) -> None:
    node = _node(upgrade=upgrade)
    answer = _answer(node, "release_update", UPDATE)
    assert answer.body is not None
    assert decode_rpc_reply(answer.body).data == {"message": "Restarting Choria Server after 2s"}
    assert answer.steps == (Tell("upgraded", "0.31.0"), Tell("shutdown"), Leave(2.0, 1.0))
    assert _answer(node, "configure").body is None
    assert node.start()
    assert _ask(node, "inventory", {}, agent="rpcutil").data["version"] == version


def test_release_update_refused() -> None:
    assert _refusal(_node(evolve(SITE, can_update=False)), "release_update", UPDATE) == (
        "Version updates is not enabled in the configuration"
    )
    assert _refusal(_node(upgrade="fails"), "release_update", UPDATE).startswith(
        "Update to version 0.31.0 failed, release rolled back: "
    )


def test_inventory() -> None:
    reply = _ask(_node(evolve(SITE, classes=("base",))), "inventory", {}, agent="rpcutil")
    assert reply.data == {
        "agents": ["choria_provision", "choria_util", "discovery", "rpcutil"],
        "classes": ["base"],
        "collectives": ["provisioning"],
        "data_plugins": [],
        "facts": {"fqdn": "n1.example.net", "os": {"family": "RedHat", "release": "9"}, "role": "web"},
        "machines": [],
        "main_collective": "provisioning",
        "version": "0.30.2",
        "upgradable": True,
    }


@pytest.mark.parametrize(("seconds", "text"), [(0, "0s"), (2.0, "2s"), (2.5, "2.5s"), (65, "1m5s")])
def test_go_duration(seconds: float, text: str) -> None:
    assert go_duration(seconds) == text
