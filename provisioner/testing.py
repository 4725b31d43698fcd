"""For tests of programs that embed this one, and for our own: a server and a helper that do exactly what they are told.

    broker = MemoryBroker()
    async with ScriptedNode("n1.example.net").on(broker.connect()) as node:
        ...
        assert [action for action, _ in node.calls] == ["inventory", "configure", "restart"]

For whole fleets that follow the protocol by themselves there is ``provisioner.simulator``.
"""

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from time import time_ns
from typing import Any, Self

import trio
from attrs import define, field

from provisioner.bus.interface import Bus, Message
from provisioner.choria import subjects
from provisioner.choria.events import Event, encode_cloud
from provisioner.choria.rpc import decode_rpc_request, encode_rpc_reply
from provisioner.choria.v1 import V1
from provisioner.choria.wire import DISCOVERY_PONG, Reply, Request, Wire
from provisioner.errors import HelperError
from provisioner.helper.process import HelperRun

INVENTORY: dict[str, Any] = {
    "agents": ["choria_provision", "choria_util", "discovery", "rpcutil"],
    "classes": [],
    "collectives": ["provisioning"],
    "data_plugins": [],
    "facts": {"role": "web"},
    "machines": [],
    "main_collective": "provisioning",
    "version": "0.30.2",
    "upgradable": False,
}


@define
class Refusal:
    """A scripted answer with a status other than OK."""

    text: str
    code: int = 1


Answer = Mapping[str, Any] | Refusal | None
"""What an action answers: its data, a refusal, or None for silence."""

_ANSWERS: dict[str, Answer] = {
    "inventory": INVENTORY,
    "configure": {"message": "Wrote 3 lines to /etc/choria/server.cfg"},
    "restart": {"message": "Restarting Choria Server after 2s"},
    "shutdown": {"message": "Shutting Choria Server down after 1s"},
    "release_update": {"message": "Restarting Choria Server after 2s"},
}


@define
class ScriptedNode:
    """One server in provisioning mode.

    Attributes:
        identity: its name.
        answers: for each action an answer, or a function from the request's data to one.
        wire: the protocol version it speaks.
        discoverable: whether it answers discovery.
        calls: each action called, with its data, in order.
        requests: the requests themselves.
    """

    identity: str
    answers: dict[str, Answer | Callable[[dict[str, Any]], Answer]] = field(factory=dict)
    wire: Wire = field(factory=lambda: V1("choria=node"))
    discoverable: bool = True
    calls: list[tuple[str, dict[str, Any]]] = field(factory=list)
    requests: list[Request] = field(factory=list)
    _bus: Bus | None = None
    _called: trio.Event = field(factory=trio.Event)

    @asynccontextmanager
    async def on(self, bus: Bus) -> AsyncIterator[Self]:
        """Listens while the context is open."""
        self._bus = bus
        async with (
            bus.subscribe(subjects.node(self.identity), self._on_request),
            bus.subscribe(subjects.broadcast("discovery"), self._on_discovery),
        ):
            yield self

    def start(self) -> None:
        """Publishes its startup event."""
        assert self._bus is not None
        number = "00000000-0000-4000-8000-000000000000"
        event = Event("startup", number, self.identity, "provision_mode_server", 1_700_000_000)
        self._bus.publish(event.subject, encode_cloud(event))

    async def called(self, action: str, times: int = 1) -> None:
        """Waits until ``action`` was called so often."""
        while sum(name == action for name, _ in self.calls) < times:
            await self._called.wait()

    def reply(self, request: Request, payload: bytes, *, sender: str | None = None) -> None:
        """Sends one answer, as ``sender`` if that is given."""
        assert self._bus is not None
        reply = Reply(request.id, request.agent, sender or self.identity, time_ns(), payload)
        self._bus.publish(request.reply_to, self.wire.encode_reply(reply, url=self._bus.url))

    def _on_discovery(self, message: Message) -> None:
        if self.discoverable:
            self.reply(self.wire.decode_request(message.data), DISCOVERY_PONG)

    def _on_request(self, message: Message) -> None:
        request = self.wire.decode_request(message.data)
        body = decode_rpc_request(request.payload)
        self.calls.append((body.action, body.data))
        self.requests.append(request)
        self._called.set()
        self._called = trio.Event()
        answer = self.answers.get(body.action, _ANSWERS.get(body.action, Refusal("Unknown action", 2)))
        if callable(answer):
            answer = answer(body.data)
        if isinstance(answer, Refusal):
            payload = encode_rpc_reply(body.action, {}, statuscode=answer.code, statusmsg=answer.text)
            self.reply(request, payload)
        elif answer is not None:
            self.reply(request, encode_rpc_reply(body.action, answer))


@define
class ScriptedHelper:
    """The site's helper, without a process: give it to ``serve`` as ``run_helper``.

    Attributes:
        reply: what it answers: an object, an error to raise, or a function from the input to either.
        seconds: how long it takes.
        inputs: what it was given, decoded, in order.
    """

    reply: Any = field(factory=lambda: {"configuration": {"plugin.choria.server.provision": "0"}})
    seconds: float = 0.0
    inputs: list[dict[str, Any]] = field(factory=list)

    async def __call__(self, argv: Sequence[str], payload: bytes, *, identity: str = "") -> HelperRun:  # noqa: ARG002
        """One run."""
        given = json.loads(payload)
        self.inputs.append(given)
        await trio.sleep(self.seconds)
        reply = self.reply(given) if callable(self.reply) else self.reply
        if isinstance(reply, HelperError):
            raise reply
        return HelperRun(stdout=json.dumps(reply).encode(), seconds=self.seconds)
