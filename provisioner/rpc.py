"""One call to one agent over the bus: subscribe once, publish, match, retry, measure.

All replies of an instance come in on one wildcard subscription and are handed to whoever waits on that subject. A
reply counts only if its request id and its sender are the ones asked for: the broker lets any server of the account
answer in another's place. A second, *different* answer to a request ends the whole conversation with that server,
whichever of the two was the true one (docs/security.md).

Servers that are asked the very same within one second are sent one signed request, as a Choria client with many targets
does (wire-protocol 5.6): one signature by a Puppet key, of 4,096 bits, costs about as much CPU as the rest of a cycle.
Each server is told a reply subject of its own, which no other can guess.
"""

import logging
import random
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from typing import Any, TypeVar

import trio
from attrs import field, frozen

from provisioner.bus.interface import Bus, Message
from provisioner.choria import subjects
from provisioner.choria.backoff import FIVE_SEC
from provisioner.choria.filter import Filter
from provisioner.choria.rpc import decode_rpc_reply, encode_rpc_request, printable, raise_for_status
from provisioner.choria.wire import DISCOVERY_PING, NANOSECOND, Request, Wire
from provisioner.errors import (
    AnsweredTwice,
    BadReply,
    ConnectionLost,
    Locked,
    NoReply,
    ProvisionerError,
    RemoteRefusal,
    TrustError,
)
from provisioner.metrics import Metrics
from provisioner.seldom import Seldom

log = logging.getLogger(__name__)

DISCOVERY_WINDOW = 2.0
"""Seconds that a sweep waits at most."""
DISCOVERY_QUIET = 0.3
"""Seconds of silence after an answer that end a sweep."""

T = TypeVar("T")


@frozen
class Action:
    """One action of one agent.

    Attributes:
        agent: the agent's name.
        name: the action's name.
        timeout: seconds to wait for one answer: the DDL's time and two seconds of discovery time-out.
        tries: how often it is asked at most.
        reply: the fields that a usable answer must have, and their types.
        defaults: fields that may be missing, with the DDL's default.
        shared: whether each server is asked the very same, so that one request may be signed for several.
    """

    agent: str
    name: str
    timeout: float
    tries: int
    reply: Mapping[str, type]
    defaults: Mapping[str, Any] = field(factory=dict)
    shared: bool = field(default=False, kw_only=True)

    @property
    def label(self) -> str:
        """The ``rpc`` label of metrics: ``choria_provision#jwt``."""
        return f"{self.agent}#{self.name}"

    def read(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """The answer's data, complete and of the right types.

        Raises:
            BadReply: a field is missing or of another type.
        """
        found = {**self.defaults, **data}
        for key, kind in self.reply.items():
            if key not in found:
                raise BadReply(f"the answer to {self.name} has no {key}")
            if type(found[key]) is not kind:
                raise BadReply(
                    f"{key} of the answer to {self.name} is {type(found[key]).__name__}, not {kind.__name__}"
                )
        return found


@frozen
class _Signed:
    """A request that is signed and not yet addressed."""

    id: str
    second: int
    layer: str = field(repr=False)


class Caller:
    """Speaks as one requester on one bus. Made by ``open_caller``."""

    def __init__(
        self, bus: Bus, wire: Wire, sender: str, ttl: int, check: Callable[[], None], metrics: Metrics
    ) -> None:
        self._bus = bus
        self._wire = wire
        self._sender = sender
        self._ttl = ttl
        self._check = check
        self._metrics = metrics
        self._seldom = Seldom(log)
        self._reply_prefix = subjects.reply_prefix(wire.caller) + "."
        self._listeners: dict[str, Callable[[bytes], None]] = {}
        self._waiting: set[_Pending] = set()
        self._shared: dict[bytes, _Signed] = {}
        self._sweep = ""

    def _on_reply(self, message: Message) -> None:
        listener = self._listeners.get(message.subject[len(self._reply_prefix) :])
        if listener is not None:
            listener(message.data)

    def _sign(self, request_id: str, agent: str, wanted: str, payload: bytes, now: float) -> _Signed:
        request = Request(
            id=request_id,
            agent=agent,
            collective=subjects.COLLECTIVE,
            sender=self._sender,
            caller=self._wire.caller,
            ttl=self._ttl,
            time_ns=int(now * NANOSECOND),
            filter=Filter(agent=(wanted,)),
            payload=payload,
            reply_to="",
        )
        return _Signed(request_id, int(now), self._wire.sign_request(request))

    def _signed(self, action: Action, payload: bytes, now: float, attempt: int) -> _Signed:
        known = self._shared.get(payload)
        if known is not None and known.second == int(now) and attempt == 1:
            return known
        signed = self._sign(self._wire.new_request_id(), action.agent, action.agent, payload, now)
        if action.shared:
            self._shared[payload] = signed  # as many bodies as there are such actions
        return signed

    def _publish(self, subject: str, signed: _Signed, reply_id: str) -> None:
        data = self._wire.address_request(
            signed.layer, sender=self._sender, url=self._bus.url, reply_to=self._reply_prefix + reply_id
        )
        self._check()  # the one place that hands a leader's bytes to the bus
        self._bus.publish(subject, data)

    async def connected(self) -> None:
        """Returns at once while there is a connection; else when there is one again."""
        if not self._bus.connected:
            await self._bus.wait_connected()

    async def watch_connection(self) -> None:
        """Fails the calls under way whenever the connection was lost: their answers may be gone with it."""
        epoch = self._bus.epoch
        while True:
            epoch = await self._bus.wait_epoch_change(epoch)
            for pending in tuple(self._waiting):
                if pending.epoch == epoch:
                    continue  # asked on the new connection, before this task had its turn
                pending.fail(ConnectionLost("the connection to the broker was lost while an answer was awaited"))

    async def discover(self, found: Callable[[str], object], *, now: float) -> None:
        """Asks who is there and calls ``found`` with each identity that answers, as it answers.

        Returns after 300 ms of silence following an answer, or after 2 s (wire-protocol 5.4). Answers that come later
        still count, until the next sweep: a crowded network loses nobody.

        Args:
            found: called with an unchecked identity, perhaps several times with the same one.
            now: unix time in seconds.

        Raises:
            ConnectionLost: there is no connection.
            PermissionDenied: the broker does not let us.
        """
        self._listeners.pop(self._sweep, None)
        self._sweep = self._wire.new_request_id()
        end = trio.current_time() + DISCOVERY_WINDOW
        scope = trio.CancelScope(deadline=end)

        def on_answer(data: bytes) -> None:
            try:
                identity = self._wire.reply_sender(data)
            except BadReply as error:
                self._metrics.refused_sighting("bad_reply")
                self._seldom.warning("unreadable", "An answer to discovery can't be read: %s", error)
                return
            scope.deadline = min(end, trio.current_time() + DISCOVERY_QUIET)
            found(identity)

        self._listeners[self._sweep] = on_answer
        signed = self._sign(self._sweep, "discovery", "choria_provision", DISCOVERY_PING, now)
        self._publish(subjects.broadcast("discovery"), signed, self._sweep)
        with scope:
            await trio.sleep_forever()

    @contextmanager
    def conversation(self, identity: str, *, clock: Callable[[], float]) -> "Iterator[Conversation]":
        """All calls of one cycle to one server.

        Args:
            identity: the server's.
            clock: unix time in seconds.

        Raises:
            AnsweredTwice: two different answers came to one of its requests, at whatever moment.
        """
        talk = Conversation(self, identity, clock)
        try:
            with talk.scope:
                yield talk
            if talk.betrayed is not None:
                raise talk.betrayed
        finally:
            for reply_id in talk.reply_ids:
                self._listeners.pop(reply_id, None)


class Conversation:
    """The calls of one cycle to one server.

    ``request_ids`` lists every request that was sent, ``reply_ids`` the last part of each one's reply subject.
    """

    def __init__(self, caller: Caller, identity: str, clock: Callable[[], float]) -> None:
        self.identity = identity
        self.scope = trio.CancelScope()
        self.betrayed: AnsweredTwice | None = None
        self.request_ids: list[str] = []
        self.reply_ids: list[str] = []
        self._caller = caller
        self._clock = clock

    async def call(
        self,
        action: Action,
        data: Callable[[], Mapping[str, Any]],
        accept: Callable[[dict[str, Any]], T],
    ) -> T:
        """Calls the action until an answer is accepted, at most ``action.tries`` times.

        Args:
            action: what to call.
            data: makes the request's data, anew for each try.
            accept: turns the answer's data into the result; a ``TrustError`` or ``BadReply`` it raises costs one try.

        Raises:
            NoReply, BadReply, RemoteRefusal, TrustError: of the last try.
            Locked: at once.
            ConnectionLost, PermissionDenied, TooLarge: at once; trying again can't help.
        """
        metrics = self._caller._metrics
        with metrics.rpc_time(action.label):
            try:
                for attempt in count(1):
                    try:
                        return accept(action.read(await self._ask(action, data(), attempt)))
                    except (NoReply, BadReply, RemoteRefusal, TrustError) as error:
                        if attempt == action.tries or (isinstance(error, RemoteRefusal) and not error.can_retry):
                            raise
                        log.warning(
                            "%s: %s, try %d of %d: %s", self.identity, action.label, attempt, action.tries, error,
                            extra={"identity": self.identity},
                        )  # fmt: skip
                    await trio.sleep(FIVE_SEC.pause(attempt, random.random()))  # noqa: S311 - spreads load, guards nothing
                raise AssertionError("unreachable: the last try returns or raises")
            except Locked:
                raise  # an outcome, not a failed call
            except ProvisionerError:
                metrics.rpc_failed(action.label)
                raise

    async def _ask(self, action: Action, data: Mapping[str, Any], attempt: int) -> Mapping[str, Any]:
        caller = self._caller
        payload = encode_rpc_request(action.agent, action.name, data)
        signed = caller._signed(action, payload, self._clock(), attempt)
        reply_id = secrets.token_hex(16) if action.shared else signed.id
        self.request_ids.append(signed.id)
        self.reply_ids.append(reply_id)
        pending = _Pending(self, signed.id, caller._bus.epoch)
        caller._listeners[reply_id] = pending.receive
        caller._waiting.add(pending)
        try:
            caller._publish(subjects.node(self.identity), signed, reply_id)
            with trio.move_on_after(action.timeout):
                await pending.event.wait()
        finally:
            caller._waiting.discard(pending)
        if pending.error is not None:
            raise pending.error
        if pending.payload is None:
            raise NoReply(f"no answer to {action.name} within {action.timeout:g} s")
        answer = decode_rpc_reply(pending.payload)
        raise_for_status(answer)
        return answer.data

    def take(self, pending: "_Pending", data: bytes) -> None:
        """One message came on the reply subject of ``pending``."""
        try:
            reply = self._caller._wire.decode_reply(data)
        except BadReply as error:
            pending.fail(error)
            return
        if reply.sender != self.identity or reply.request != pending.request_id:
            self._caller._seldom.warning(
                "other", "%s: an answer by %s to request %s is not the one asked for, and is ignored",
                self.identity, printable(reply.sender, 255), printable(reply.request, 64),
            )  # fmt: skip
        elif pending.payload is None:
            pending.payload = reply.payload
            pending.event.set()
        elif pending.payload != reply.payload:
            self.betrayed = AnsweredTwice("two different answers came to one request: somebody answers in its place")
            self.scope.cancel()


class _Pending:
    """One request that awaits its answer, and then watches for a second one until the conversation ends."""

    __slots__ = ("conversation", "epoch", "error", "event", "payload", "request_id")

    def __init__(self, conversation: Conversation, request_id: str, epoch: int) -> None:
        self.conversation = conversation
        self.request_id = request_id
        self.epoch = epoch
        self.event = trio.Event()
        self.payload: bytes | None = None
        self.error: BadReply | ConnectionLost | None = None

    def receive(self, data: bytes) -> None:
        self.conversation.take(self, data)

    def fail(self, error: BadReply | ConnectionLost) -> None:
        if not self.event.is_set():
            self.error = error
            self.event.set()


@asynccontextmanager
async def open_caller(
    bus: Bus, wire: Wire, *, sender: str, ttl: int = 60, check: Callable[[], None], metrics: Metrics
) -> AsyncIterator[Caller]:
    """A caller whose reply subscription is in place.

    Args:
        bus: the bus.
        wire: the protocol version to speak, with the key to sign with.
        sender: our identity.
        ttl: seconds for which a request is valid (choria.cfg ``ttl``).
        check: called before anything is handed to the bus; raises when this instance may no longer act.
        metrics: told of each call.
    """
    caller = Caller(bus, wire, sender, ttl, check, metrics)
    async with bus.subscribe(caller._reply_prefix + "*", caller._on_reply):
        yield caller
