"""What a Choria Server in provisioning mode is and does when its agents are asked (wire-protocol 6). Sans-IO.

The checks, their order and their words are the real server's. Files are kept in memory, so a test can look at them.
"""

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from attrs import define, field, frozen

from provisioner import strictjson
from provisioner.choria import settings
from provisioner.choria.encoding import dumps
from provisioner.choria.rpc import RPCRequest, Status, encode_rpc_reply
from provisioner.errors import TrustError
from provisioner.simulator.keys import Ed25519Pair
from provisioner.simulator.site import AGENTS, CONFIG, PROVISION_KEY, Answer, Leave, Received, Site, Tell
from provisioner.trust.sealing import ExchangeKey, unseal


class Refused(Exception):
    """An action ends here with a status and the server's words."""

    def __init__(self, text: str, status: Status = Status.ABORTED) -> None:
        super().__init__(text)
        self.status = status


@define(eq=False)
class Node:
    """One server. ``now`` is Unix seconds wherever it is an argument.

    Attributes:
        identity: its name.
        site: what it shares with others.
        random: its luck.
        provisioning: whether it is in provisioning mode.
        upgrade: how upgrades end: ``ok``, ``fails`` or ``nothing`` (accepted, but the version stays).
        files: what it has written, by name below ``site.directory``.
        received: what reached it.
    """

    identity: str
    site: Site
    random: Random
    provisioning: bool = True
    upgrade: str = "ok"
    version: str = field(default="")
    files: dict[str, str] = field(factory=dict, repr=False)
    received: Received = field(factory=Received)
    _holder: str = ""
    _held_until: float = 0.0
    _exchange: ExchangeKey | None = None
    _restarting: bool = False

    def __attrs_post_init__(self) -> None:
        self.version = self.version or self.site.version
        self.files.setdefault(CONFIG, f"{PROVISION_KEY} = {int(self.provisioning)}\n")

    @property
    def exchange_public(self) -> str:
        """Its public key of the latest ``jwt`` call, 64 hex digits; ``""`` before any."""
        return self._exchange.public if self._exchange else ""

    def start(self) -> bool:
        """Starts its process anew, with the files there are. Returns whether it is in provisioning mode now."""
        self._holder, self._held_until, self._exchange, self._restarting = "", 0.0, None, False
        self.provisioning = self._setting(PROVISION_KEY) in {"", "1"}  # without the key the token's chpd counts: true
        return self.provisioning

    def answer(self, request: RPCRequest, request_id: str, sender: str, caller: str, now: float) -> Answer:
        """Does one action of one agent."""
        name = request.action
        actions = _ACTIONS.get(request.agent, {})
        if request.agent == "choria_provision" and self._restarting:
            return Answer(None)  # the restart routine sleeps with the agent's mutex in hand
        if name not in actions:
            text = f"Unknown action {name} for agent {request.agent}"
            return Answer(encode_rpc_reply(name, {}, statuscode=Status.UNKNOWN_ACTION, statusmsg=text))
        self.received.asked[name] += 1
        action = actions[name]
        try:
            if action.locks:
                self._lock(f"{sender}.{caller}", now)
            action.check_mode(self)
            inputs = action.parse(request)
            if "token" in action.inputs and self.site.token not in {"", inputs["token"]}:
                raise Refused("Incorrect provision token supplied")  # noqa: TRY301 - each check of an action ends so
            inputs["request"] = f"{request_id} from {caller} ({sender})"
            body, *steps = action.run(self, inputs)
        except Refused as refusal:
            return Answer(encode_rpc_reply(name, {}, statuscode=refusal.status, statusmsg=str(refusal)))
        self.received.done[name] += 1
        return Answer(body if isinstance(body, bytes) else encode_rpc_reply(name, body), tuple(steps))

    def _lock(self, who: str, now: float) -> None:
        if self._holder not in {"", who} and now < self._held_until:
            raise Refused("Could not obtain provisioning lock")
        self._holder, self._held_until = who, now + self.site.lock_seconds

    def _setting(self, key: str) -> str:
        return dict(settings.parse(self.files[CONFIG])).get(key, "")

    # --- the actions of choria_provision ------------------------------------------------------------------------------

    def jwt(self, inputs: dict[str, Any]) -> list[Any]:  # noqa: ARG002 - one form for all
        """6.2: a fresh key for the exchange on each call; only the latest opens a sealed key."""
        self._exchange = ExchangeKey()
        # Built by hand: a fleet answers this a thousand times with the same token.
        return [
            f'{{"action":"jwt","statuscode":0,"statusmsg":"OK","data":{{"jwt":{dumps(self.site.jwt)},'
            f'"ecdh_public":"{self._exchange.public}"}}}}'.encode()
        ]

    def gen25519(self, inputs: dict[str, Any]) -> list[Any]:
        """6.3: a new key pair, its seed in a file, the nonce's text signed."""
        pair = Ed25519Pair()
        self.files.pop("server.jwt", None)
        self.files["server.seed"] = pair.seed
        signature = pair.sign(inputs["nonce"])
        return [{"public_key": pair.public, "directory": self.site.directory, "signature": signature}]

    def gencsr(self, inputs: dict[str, Any]) -> list[Any]:
        """6.4: a new key and a request for it."""
        try:
            csr, public, private = self.site.requests.request(inputs["cn"] or self.identity, inputs)
        except ValueError as error:
            raise Refused(f"Could not create CSR: {error}") from None
        self.files |= {"ssl/private.pem": private, "ssl/csr.pem": csr}
        return [{"csr": csr, "public_key": public, "ssldir": f"{self.site.directory}/ssl"}]

    def configure(self, inputs: dict[str, Any]) -> list[Any]:
        """6.5: TLS files, server token, configuration, policies, in that order and without rolling back."""
        if not inputs["config"]:
            raise Refused("Did not receive any configuration to write, cannot write a empty configuration file")
        if inputs["key"] and not inputs["ecdh_public"]:
            raise Refused("EDCH Public Key not supplied while providing a private key")
        configuration = _string_map(inputs["config"])
        if inputs["certificate"] and inputs["ca"] and inputs["ssldir"]:
            self._write_tls(inputs)
        if inputs["server_jwt"]:
            self.files["server.jwt"] = inputs["server_jwt"]
        comment = f"# configuration file written in request {inputs['request']}"
        self.files[CONFIG] = "\n".join([comment, *(f"{key}={value}" for key, value in configuration.items()), ""])
        self.received.configurations.append(configuration)
        self._write_policies("Action Policies", "policies/", ".policy", inputs["action_policies"])
        self._write_policies("Open Policy Agent Policies", "policies/rego/", ".rego", inputs["opa_policies"])
        message = f"Wrote {len(configuration) + 1} lines to {self.site.directory}/{CONFIG}"
        return [{"message": message}, Tell("provisioned")]

    def _write_tls(self, inputs: dict[str, Any]) -> None:
        self.files |= {"ssl/certificate.pem": inputs["certificate"], "ssl/ca.pem": inputs["ca"]}
        if inputs["key"]:
            try:
                opened = unseal(inputs["key"], self._exchange or ExchangeKey(), inputs["ecdh_public"])
            except TrustError as error:
                raise Refused(f"TLS Setup Failed: {error}") from None
            self.files["ssl/private.pem"] = opened.reveal()
            self.files.pop("ssl/csr.pem", None)

    def _write_policies(self, what: str, directory: str, extension: str, policies: dict[str, str]) -> None:
        if not policies:
            return
        for name in policies:
            if not name.endswith(extension):
                raise Refused(f'Could not save {what}: expected "{name}" to have {extension} extension')
        for name in [name for name in self.files if name.startswith(directory)]:
            del self.files[name]
        self.files |= {directory + name: text for name, text in policies.items() if name and text}

    def restart(self, inputs: dict[str, Any]) -> list[Any]:
        """6.6: refused as long as the file on disk would start provisioning again."""
        if self._setting(PROVISION_KEY).lower() in {"1", "yes", "true", "y", "t"}:
            path = f"{self.site.directory}/{CONFIG}"
            raise Refused(f"Configuration {path} enables provisioning, restart cannot continue")
        delay = self.random.randrange(inputs["splay"] or 10) + self.site.restart_seconds
        self._restarting = True
        message = f"Restarting Choria Server after {go_duration(delay)}"
        returns = self.site.return_seconds if self.site.comes_back else None
        return [{"message": message}, Tell("shutdown"), Leave(delay, returns)]

    def shutdown(self, inputs: dict[str, Any]) -> list[Any]:  # noqa: ARG002 - one form for all
        """6.9."""
        delay = self.random.randrange(10)
        message = f"Shutting Choria Server down after {go_duration(delay)}"
        return [{"message": message}, Leave(delay, farewell=True)]

    def reprovision(self, inputs: dict[str, Any]) -> list[Any]:  # noqa: ARG002 - one form for all
        """6.7: back into provisioning mode."""
        delay = self.random.randrange(10) + self.site.restart_seconds
        self.files[CONFIG] = f"{PROVISION_KEY}=1\nloglevel=debug\n"
        self._restarting = True
        message = f"Restarting after {go_duration(delay)}"
        return [{"message": message}, Tell("shutdown"), Leave(delay, self.site.return_seconds)]

    def release_update(self, inputs: dict[str, Any]) -> list[Any]:
        """6.8."""
        wanted = inputs["version"]
        if self.upgrade == "fails":
            text = f"release {wanted} not found: could not download release spec"
            raise Refused(f"Update to version {wanted} failed, release rolled back: {text}")
        self._restarting = True
        if self.upgrade == "ok":
            self.version = wanted
        message = f"Restarting Choria Server after {go_duration(self.site.restart_seconds)}"
        leave = Leave(self.site.restart_seconds, self.site.return_seconds)
        return [{"message": message}, Tell("upgraded", wanted), Tell("shutdown"), leave]

    # --- rpcutil ------------------------------------------------------------------------------------------------------

    def inventory(self, inputs: dict[str, Any]) -> list[Any]:  # noqa: ARG002 - one form for all
        """6.10."""
        return [
            {
                "agents": list(AGENTS),
                "classes": list(self.site.classes),
                "collectives": ["provisioning"],
                "data_plugins": [],
                "facts": self.site.facts(self.identity),
                "machines": [],
                "main_collective": "provisioning",
                "version": self.version,
                "upgradable": self.site.can_update,
            }
        ]

    # --- the mode checks ----------------------------------------------------------------------------------------------

    def must_be_provisioning(self, text: str = "Cannot reconfigure a server that is not in provisioning mode") -> None:
        """Refuses with this text unless it is in provisioning mode."""
        if not self.provisioning:
            raise Refused(text)

    def must_be_reachable(self, verb: str) -> None:
        """``restart`` and ``shutdown``: provisioning mode, or a token set."""
        if not self.provisioning and not self.site.token:
            raise Refused(f"Cannot {verb} a server that is not in provisioning mode or with no token set")

    def must_allow_update(self) -> None:
        """``release_update``."""
        self.must_be_provisioning("Cannot update a server that is not in provisioning mode")
        if not self.site.can_update:
            raise Refused("Version updates is not enabled in the configuration")

    def must_be_provisioned(self) -> None:
        """``reprovision``."""
        if self.provisioning:
            raise Refused("Server is already in provisioning mode, cannot enable provisioning mode again")


def go_duration(seconds: float) -> str:
    """Whole and broken seconds under an hour as Go prints a duration: ``2s``, ``1m5s``."""
    minutes, rest = divmod(seconds, 60)
    return f"{minutes:.0f}m{rest:g}s" if minutes else f"{rest:g}s"


def _string_map(text: str) -> dict[str, str]:
    try:
        found = strictjson.loads(text)
    except strictjson.NotJSON as error:
        raise Refused(f"Could not decode configuration data: {error}") from None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise Refused("Could not decode configuration data: an object with text values is wanted")
    return found


@frozen
class _Action:
    run: Callable[[Node, dict[str, Any]], list[Any]]
    locks: bool
    check_mode: Callable[[Node], None]
    inputs: Mapping[str, type]

    def parse(self, request: RPCRequest) -> dict[str, Any]:
        """The inputs, each of its type; missing and null ones have Go's zero value."""
        parsed: dict[str, Any] = {}
        for name, kind in self.inputs.items():
            value = request.data.get(name)
            if value is None:
                value = kind()
            wrong = type(value) is not kind
            if kind is dict and not wrong:
                wrong = not all(isinstance(each, str) for each in value.values())
            if wrong:
                words = f"json: cannot unmarshal {type(value).__name__} into field {name}"
                text = f"Could not parse request data for {request.agent}#{request.action}: {words}"
                raise Refused(text, Status.INVALID_DATA)
            parsed[name] = value
        if parsed.get("splay", 0) < 0:
            raise Refused("splay must not be negative")  # a real server's agent panics
        return parsed


def _texts(*names: str) -> dict[str, type]:
    return dict.fromkeys(names, str)


_CONFIGURE = _texts("token", "config", "certificate", "ca", "ssldir", "key", "ecdh_public", "server_jwt")
_mode = Node.must_be_provisioning
_ACTIONS: dict[str, dict[str, _Action]] = {
    "choria_provision": {
        "jwt": _Action(Node.jwt, True, _mode, _texts("token")),
        "gen25519": _Action(Node.gen25519, True, _mode, _texts("token", "nonce")),
        "gencsr": _Action(Node.gencsr, True, _mode, _texts("token", "cn", "C", "L", "O", "OU", "ST")),
        "configure": _Action(
            Node.configure, True, _mode, {**_CONFIGURE, "action_policies": dict, "opa_policies": dict}
        ),
        "restart": _Action(
            Node.restart, False, lambda node: node.must_be_reachable("restart"), {"token": str, "splay": int}
        ),
        "shutdown": _Action(Node.shutdown, False, lambda node: node.must_be_reachable("shutdown"), _texts("token")),
        "reprovision": _Action(Node.reprovision, False, Node.must_be_provisioned, _texts("token")),
        "release_update": _Action(
            Node.release_update, True, Node.must_allow_update, _texts("token", "repository", "version")
        ),
    },
    "rpcutil": {"inventory": _Action(Node.inventory, False, lambda _node: None, {})},
}
