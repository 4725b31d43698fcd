"""One simulated server at the level of messages: a request in, what it does out. Sans-IO; time is an argument.

This is the server's side of ``choria/``, with the checks of wire-protocol 5.2, and where faults strike.
"""

import base64
from collections.abc import Callable
from typing import Any

from attrs import define, evolve, frozen

from provisioner import strictjson
from provisioner.choria.events import Event
from provisioner.choria.rpc import Status, decode_rpc_request, encode_rpc_reply
from provisioner.choria.security import INSECURE
from provisioner.choria.subjects import COLLECTIVE
from provisioner.choria.v1 import V1
from provisioner.choria.v2 import V2
from provisioner.choria.wire import DISCOVERY_PONG, NANOSECOND, Reply, Request, Wire
from provisioner.errors import BadReply
from provisioner.simulator.faults import Fault, Kind
from provisioner.simulator.node import Node
from provisioner.simulator.site import AGENTS, COMPONENT, Answer, Leave, Step, Tell

HUGE_BYTES = 512 * 1024


def server_wire(version: int) -> Wire:
    """How servers of a version speak: in provisioning mode they neither sign nor verify."""
    return V1("", INSECURE) if version == 1 else V2("", INSECURE)


@frozen
class Send:
    """A reply to publish in so many seconds."""

    subject: str
    data: bytes
    after: float = 0.0


Effect = Send | Step


@define(eq=False)
class Server:
    """One server on the wire.

    Attributes:
        node: what it is and does.
        wire: how it speaks; servers of one version may share one.
        fault: what is wrong with it, if anything.
        present: whether it is connected; kept by the fleet.
        struck: how often the fault has shown.
    """

    node: Node
    wire: Wire
    fault: Fault | None = None
    present: bool = True
    struck: int = 0

    @property
    def identity(self) -> str:
        """Its name."""
        return self.node.identity

    def event(self, step: Tell, *, now: float, id_: str) -> Event:
        """The lifecycle event that a step stands for."""
        version = self.node.version if step.type in {"startup", "alive", "upgraded"} else ""
        return Event(step.type, id_, self.identity, COMPONENT, int(now), version, step.new_version)

    def receive(self, request: Request, *, now: float, url: str) -> list[Effect]:
        """What it does about one request, in order; nothing if it isn't meant, as a real server.

        Args:
            request: opened by ``wire.decode_request``.
            now: Unix seconds.
            url: the broker it is connected to.
        """
        if not self._is_meant(request, now):
            return []
        say = _Speech(request, self.identity, self.wire, int(now * NANOSECOND), url)
        if request.agent == "discovery":
            return [say(DISCOVERY_PONG)] if b"ping" in _unwrapped(request.payload) else []
        try:
            body = decode_rpc_request(request.payload)
        except BadReply as error:
            text = f"Could not process request: {error}"
            return [say(encode_rpc_reply("", {}, statuscode=Status.INVALID_DATA, statusmsg=text))]
        fault = self._strikes(body.action)
        answer = None if fault is None else _instead(fault)
        if answer is None:
            answer = self.node.answer(body, request.id, request.sender, request.caller, now)
        else:
            self.node.received.asked[body.action] += 1
        tells = [step for step in answer.steps if isinstance(step, Tell)]
        late = fault.seconds if fault is not None and fault.kind is Kind.SLOW else 0.0
        leaves = [evolve(step, after=step.after + late) for step in answer.steps if isinstance(step, Leave)]
        return [*tells, *_replies(fault, say, answer.body), *leaves]

    def _is_meant(self, request: Request, now: float) -> bool:
        site = self.node.site
        return (
            self.present
            and request.collective == COLLECTIVE
            and request.agent in AGENTS
            and bool(request.reply_to)
            and request.is_current(int(now * NANOSECOND))
            and request.filter.matches(
                identity=self.identity,
                agents=AGENTS,
                classes=site.classes,
                facts=site.facts(self.identity) if request.filter.fact else None,
            )
        )

    def _strikes(self, action: str) -> Fault | None:
        fault = self.fault
        if fault is None or fault.action not in {"", action} or self.struck == fault.times:
            return None
        self.struck += 1
        return fault


@frozen
class _Speech:
    """Says things in answer to one request; the arguments are for liars."""

    request: Request
    identity: str
    wire: Wire
    now_ns: int
    url: str

    def __call__(
        self, body: bytes, *, sender: str = "", id_: str = "", wire: Wire | None = None, after: float = 0.0
    ) -> Send:
        reply = Reply(id_ or self.request.id, self.request.agent, sender or self.identity, self.now_ns, body)
        return Send(self.request.reply_to, (wire or self.wire).encode_reply(reply, url=self.url), after)


def _unwrapped(payload: bytes) -> bytes:
    """A server takes base64 off a payload wherever that works (5.1)."""
    try:
        return base64.b64decode(payload, validate=True)
    except ValueError:
        return payload


def _instead(fault: Fault) -> Answer | None:
    """What a faulty server answers without doing anything; None if it does what it is asked first."""
    match fault.kind:
        case Kind.SILENT:
            return Answer(None)
        case Kind.REFUSING:
            return Answer(encode_rpc_reply("", {}, statuscode=Status.ABORTED, statusmsg="Simulated refusal"))
        case Kind.LOCKED:
            text = "Could not obtain provisioning lock"
            return Answer(encode_rpc_reply("", {}, statuscode=Status.ABORTED, statusmsg=text))
        case Kind.DYING:
            return Answer(None, (Leave(0.0),))
        case Kind.COMING_BACK:
            return Answer(None, (Leave(0.0, fault.seconds),))
        case _:
            return None


def _with_data(body: bytes, data: dict[str, Any]) -> bytes:
    reply = strictjson.loads(body)
    return encode_rpc_reply(reply["action"], reply["data"] | data)


def _wrong_types(body: bytes) -> bytes:
    return _with_data(body, dict.fromkeys(strictjson.loads(body)["data"], 7))


def _replies(fault: Fault | None, say: _Speech, body: bytes | None) -> list[Send]:
    """The reply, or what a faulty server sends in its place."""
    if body is None or (fault is not None and fault.kind is Kind.LOST_REPLY):
        return []
    if fault is None:
        return [say(body)]
    if spoil := _BODIES.get(fault.kind):
        body = spoil(body)
    match fault.kind:
        case Kind.GARBAGE:
            return [evolve(say(body), data=b"\x00\xff not a message")]
        case Kind.TWICE:
            return [say(body)] * 2
        case Kind.TWO_ANSWERS:
            return [say(body), say(_with_data(body, {"message": "another answer"}))]
        case _:
            return [say(body, **_lies(fault, say))]


def _lies(fault: Fault, say: _Speech) -> dict[str, Any]:
    """How a faulty server's envelope differs."""
    match fault.kind:
        case Kind.SLOW:
            return {"after": fault.seconds}
        case Kind.FOR_ANOTHER:
            return {"sender": f"not-{say.identity}"}
        case Kind.WRONG_ID:
            return {"id_": "0" * len(say.request.id)}
        case Kind.WRONG_VERSION:
            return {"wire": server_wire(3 - say.wire.version)}
        case _:
            return {}


_BODIES: dict[Kind, Callable[[bytes], bytes]] = {
    Kind.BAD_BODY: lambda _body: b"not JSON",
    Kind.EMPTY_DATA: lambda body: encode_rpc_reply(strictjson.loads(body)["action"], {}),
    Kind.WRONG_TYPES: _wrong_types,
    Kind.HUGE: lambda body: _with_data(body, {"message": "x" * HUGE_BYTES}),
    Kind.BAD_CSR: lambda body: _with_data(body, {"csr": "not PEM"}),
    Kind.BAD_KEY: lambda body: _with_data(body, {"public_key": "00ff"}),
}
