"""A bus in memory, with faults on demand: for tests of programs that embed this one, and for our own.

It behaves as a NATS server and its connections do (``tests/integration/test_bus_conformance.py`` runs on both), is
deterministic, needs no task of its own and works under ``trio.testing.MockClock``. A message is handed over soon after
``publish`` returns, never within it.

    broker = MemoryBroker()
    ours, theirs = broker.connect(), broker.connect()
    broker.faults.append(dropping("provisioning.node.*", times=1))
    theirs.disconnect("cable cut")
"""

import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager

import trio
from attrs import define

from provisioner.bus.interface import Handler, Headers, Message
from provisioner.bus.link import NO_RESPONDERS, Inbox, Link, clean_headers, deliver, message_size
from provisioner.bus.subjects import check_subject, matches
from provisioner.errors import ConnectionLost, NoReply, PermissionDenied, TooLarge

log = logging.getLogger(__name__)

Fault = Callable[[Message], Sequence[float] | None]
"""Decides about one published message: in how many seconds each copy of it arrives. ``()`` drops it, ``(0, 0)`` sends
it twice, ``(1.5,)`` delays it; None leaves it to the next fault."""


def _fault(pattern: str, fate: Sequence[float], times: int | None) -> Fault:
    left = times

    def decide(message: Message) -> Sequence[float] | None:
        nonlocal left
        if left == 0 or not matches(pattern, message.subject):
            return None
        if left is not None:
            left -= 1
        return fate

    return decide


def dropping(pattern: str, *, times: int | None = None) -> Fault:
    """Loses what is sent to ``pattern``: the first ``times`` messages, or all."""
    return _fault(pattern, (), times)


def delaying(pattern: str, seconds: float, *, times: int | None = None) -> Fault:
    """Holds back what is sent to ``pattern``; later messages overtake it."""
    return _fault(pattern, (seconds,), times)


def duplicating(pattern: str, *, times: int | None = None) -> Fault:
    """Hands over twice what is sent to ``pattern``."""
    return _fault(pattern, (0.0, 0.0), times)


@define(eq=False)
class Subscription:
    """One subscription of one connection."""

    bus: "MemoryBus"
    pattern: str
    queue: str
    handler: Handler
    open: bool = True


class MemoryBroker:
    """The server in the middle.

    Attributes:
        max_payload: the limit for one message, headers included, in bytes; may be changed at any time.
        faults: asked in order about each published message; the first answer that isn't None counts.
    """

    def __init__(self, *, max_payload: int = 1024 * 1024) -> None:
        self.max_payload = max_payload
        self.faults: list[Fault] = []
        self._buses: list[MemoryBus] = []
        self._subscriptions: list[Subscription] = []
        self._turns: dict[tuple[str, str], int] = {}
        self._actions: deque[Callable[[], None]] = deque()

    def connect(
        self, *, deny_publish: Iterable[str] = (), deny_subscribe: Iterable[str] = (), inbox_prefix: str = "_INBOX"
    ) -> "MemoryBus":
        """One more connection, up at once. The arguments are those of ``MemoryBus``."""
        return MemoryBus(self, deny_publish=deny_publish, deny_subscribe=deny_subscribe, inbox_prefix=inbox_prefix)

    def stop(self, reason: str = "the server went away") -> None:
        """Cuts all connections."""
        for bus in self._buses:
            bus.disconnect(reason)

    def start(self) -> None:
        """Brings back all that are cut."""
        for bus in self._buses:
            bus.reconnect()

    def send(self, to: str, message: Message) -> None:
        """Hands ``message`` to those who listen on ``to``, as a server does that sends on a message it has stored.

        Faults apply by the message's own subject.
        """
        self._hand_out(self._route(to), message)

    def listens(self, subject: str) -> bool:
        """Whether anybody who is connected listens on ``subject``."""
        return any(each.bus.connected and matches(each.pattern, subject) for each in self._subscriptions)

    def _soon(self, action: Callable[[], None]) -> None:
        """Runs ``action`` after all that is queued, outside of whoever calls."""
        self._actions.append(action)
        if len(self._actions) == 1:
            trio.lowlevel.current_trio_token().run_sync_soon(self._run)

    def _run(self) -> None:
        # Only what is here now: what that causes is run in the next round, and other tasks get their turn.
        for _ in range(len(self._actions)):
            self._actions[0]()
            self._actions.popleft()
        if self._actions:
            trio.lowlevel.current_trio_token().run_sync_soon(self._run)

    def _publish(self, sender: "MemoryBus", message: Message) -> None:
        receivers = self._route(message.subject)
        if message.reply and not receivers:
            nobody = Message(message.reply, b"", headers={"Status": NO_RESPONDERS})
            for subscription in self._subscriptions:
                if subscription.bus is sender and matches(subscription.pattern, message.reply):
                    self._hand_over([subscription], nobody)
            return
        self._hand_out(receivers, message)

    def _hand_out(self, receivers: list[Subscription], message: Message) -> None:
        fate = next((fate for fault in self.faults if (fate := fault(message)) is not None), (0.0,))
        for seconds in fate:
            if seconds:
                trio.lowlevel.spawn_system_task(self._later, seconds, receivers, message)
            else:
                self._hand_over(receivers, message)

    def _route(self, subject: str) -> list[Subscription]:
        found, groups = [], dict[tuple[str, str], list[Subscription]]()
        for subscription in self._subscriptions:
            if not (subscription.bus.connected and matches(subscription.pattern, subject)):
                continue
            if subscription.queue:
                groups.setdefault((subscription.pattern, subscription.queue), []).append(subscription)
            else:
                found.append(subscription)
        for name, members in groups.items():
            turn = self._turns[name] = self._turns.get(name, -1) + 1
            found.append(members[turn % len(members)])
        return found

    async def _later(self, seconds: float, receivers: list[Subscription], message: Message) -> None:
        await trio.sleep(seconds)
        self._hand_over(receivers, message)

    def _hand_over(self, receivers: list[Subscription], message: Message) -> None:
        for subscription in receivers:
            epoch = subscription.bus.epoch

            def arrive(to: Subscription = subscription, epoch: int = epoch) -> None:
                if to.open and to.bus.connected and to.bus.epoch == epoch:
                    deliver(to.handler, message)

            self._soon(arrive)


class MemoryBus:
    """One connection to a ``MemoryBroker``; a ``Bus``.

    Args:
        broker: the server; without one it gets its own, ``bus.broker``.
        deny_publish: patterns of subjects to which it may not publish.
        deny_subscribe: patterns of subjects to which it may not subscribe.
        inbox_prefix: what the reply subjects of ``request`` begin with.
    """

    def __init__(
        self,
        broker: MemoryBroker | None = None,
        *,
        deny_publish: Iterable[str] = (),
        deny_subscribe: Iterable[str] = (),
        inbox_prefix: str = "_INBOX",
    ) -> None:
        self.broker = broker or MemoryBroker()
        self.deny_publish = set(deny_publish)
        self.deny_subscribe = set(deny_subscribe)
        self.last_error = ""
        self._link = Link()
        self._inbox_prefix = inbox_prefix
        self._inboxes = 0
        self._number = len(self.broker._buses) + 1  # noqa: SLF001 - one thing in two classes
        self._inbox = Inbox(self.new_inbox())
        self.broker._buses.append(self)  # noqa: SLF001
        self.listen(self._inbox.pattern, self._inbox.receive)
        self._link.up()

    @property
    def connected(self) -> bool:
        """See ``Bus``."""
        return self._link.connected

    @property
    def url(self) -> str:
        """See ``Bus``."""
        return "memory://" if self._link.epoch else ""

    @property
    def max_payload(self) -> int:
        """See ``Bus``."""
        return self.broker.max_payload

    @property
    def epoch(self) -> int:
        """See ``Bus``."""
        return self._link.epoch

    @property
    def pending_requests(self) -> int:
        """How many requests wait for an answer."""
        return self._inbox.pending

    def disconnect(self, reason: str = "connection cut") -> None:
        """Cuts this connection: what was under way to it is lost, and its requests fail."""
        if self.connected:
            self.last_error = reason
            self._link.down()
            self._inbox.fail(reason)

    def reconnect(self) -> None:
        """Brings it back with all its subscriptions."""
        if not self.connected:
            self.last_error = ""
            self._link.up()

    def publish(self, subject: str, data: bytes, *, reply: str = "", headers: Headers | None = None) -> None:
        """See ``Bus``."""
        check_subject(subject)
        if reply:
            check_subject(reply)
        sent = clean_headers(headers)
        if not self.connected:
            raise ConnectionLost(self.last_error)
        size = message_size(data, sent)
        if size > self.max_payload:
            raise TooLarge(f"{size} bytes to {subject}: the server takes {self.max_payload}")
        if any(matches(pattern, subject) for pattern in self.deny_publish):
            text = f'permissions violation for publish to "{subject.lower()}"'
            self.broker._soon(lambda: self._refused(subject, text))  # noqa: SLF001
            return
        self.broker._publish(self, Message(subject, data, reply, sent))  # noqa: SLF001

    def _refused(self, subject: str, text: str) -> None:
        self.last_error = text
        log.warning("The server refuses: %s", text)
        self._inbox.refuse(subject, text)

    async def flush(self, timeout: float = 5.0) -> None:
        """See ``Bus``."""
        if not self.connected:
            raise ConnectionLost(self.last_error)
        epoch, seen = self.epoch, trio.Event()
        self.broker._soon(seen.set)  # noqa: SLF001
        with trio.move_on_after(timeout) as scope:
            await seen.wait()
        if scope.cancelled_caught:
            raise NoReply(f"the server did not answer within {timeout:g} s")
        if self.epoch != epoch or not self.connected:
            raise ConnectionLost(self.last_error)

    def unsubscribe_all(self) -> None:
        """Ends what ``listen`` and ``subscribe`` began; answers to requests still arrive."""
        for subscription in self.broker._subscriptions:  # noqa: SLF001
            if subscription.bus is self and subscription.pattern != self._inbox.pattern:
                subscription.open = False
        self.broker._subscriptions = [each for each in self.broker._subscriptions if each.open]  # noqa: SLF001

    def listen(self, subject: str, handler: Handler, queue: str = "") -> Subscription:
        """Subscribes at once and for good, without asking for permission: for the server's own parts."""
        made = Subscription(self, subject, queue, handler)
        self.broker._subscriptions.append(made)  # noqa: SLF001
        return made

    @asynccontextmanager
    async def subscribe(self, subject: str, handler: Handler, *, queue: str = "") -> AsyncIterator[None]:
        """See ``Bus``."""
        check_subject(subject, pattern=True)
        if queue:
            check_subject(queue)
        await self._link.wait_connected()
        if any(matches(pattern, subject) for pattern in self.deny_subscribe):
            text = f'permissions violation for subscription to "{subject.lower()}"'
            self.last_error = text
            raise PermissionDenied(text)
        made = self.listen(subject, handler, queue)
        try:
            yield
        finally:
            if made.open:
                made.open = False
                self.broker._subscriptions.remove(made)  # noqa: SLF001

    async def request(self, subject: str, data: bytes, *, timeout: float, headers: Headers | None = None) -> Message:
        """See ``Bus``."""

        def send(reply: str) -> None:
            self.publish(subject, data, reply=reply, headers=headers)

        return await self._inbox.request(subject, send, timeout)

    async def wait_connected(self) -> None:
        """See ``Bus``."""
        await self._link.wait_connected()

    async def wait_epoch_change(self, epoch: int) -> int:
        """See ``Bus``."""
        return await self._link.wait_epoch_change(epoch)

    def new_inbox(self) -> str:
        """See ``Bus``."""
        self._inboxes += 1
        return f"{self._inbox_prefix}.{self._number}-{self._inboxes}"
