"""A watch of a key-value bucket that says when it knows everything and when it doesn't.

JetStream sends a bucket's content to an ephemeral consumer that dies without a word: with the server, the bucket, or by
somebody's hand. So the watch is a loop that makes one consumer after another, as soon as one is found dead: another
connection (``epoch``), a missing heartbeat, a gap in its numbers, another bucket under the same name.
"""

import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from secrets import token_hex
from typing import TYPE_CHECKING, Literal

import trio
from attrs import frozen

from provisioner.bus.background import beside
from provisioner.bus.interface import Bus, Message
from provisioner.errors import BusError, Stale

if TYPE_CHECKING:
    from provisioner.bus.keyvalue import KeyValue, Status

log = logging.getLogger(__name__)

HEARTBEAT = 1.0
"""Seconds of silence after which the server sends a sign of life."""
SILENCE = 2.5
"""Seconds without any sign after which a consumer counts as dead; it is noticed within twice that."""
PAUSE = (0.1, 0.25, 0.5, 1.0, 2.0)
"""Seconds before the next try after one, two, … failures in a row."""
LOST_INTEREST = 1.0
"""Seconds after which the server forgets a consumer that nobody listens to."""
_SECOND = 1_000_000_000

Operation = Literal["PUT", "DEL", "PURGE"]
_MARKERS: dict[str, Operation] = {"MaxAge": "PURGE", "Purge": "PURGE", "Remove": "DEL"}


@frozen
class Entry:
    """One write of one key.

    Attributes:
        key: its name; not checked, since a careless client may have stored anything.
        value: its bytes; empty for a deletion, and possible for a value.
        revision: the sequence of this write.
        operation: ``PUT``, or the kind of deletion.
        created: when it was written, by the server's clock, in seconds since 1970.
    """

    key: str
    value: bytes
    revision: int
    operation: Operation = "PUT"
    created: float = 0.0

    @property
    def deleted(self) -> bool:
        """Whether the key has no value since this write."""
        return self.operation != "PUT"


@frozen
class Begin:
    """A reading from the start begins: what was told before may be gone. An entry for each key follows."""


@frozen
class CaughtUp:
    """Each key that had a value, or a delete marker, when the reading began has been told. ``sequence`` covers all."""

    sequence: int


@frozen
class Lost:
    """Nothing more can be heard: what was told may be old. ``reason`` is for an operator. A ``Begin`` will follow."""

    reason: str


Event = Entry | Begin | CaughtUp | Lost
Handler = Callable[[Event], None]


def entry_of(key: str, message: Message, revision: int, created: float) -> Entry:
    """An entry from the message that stores it."""
    headers = message.headers
    operation = _MARKERS.get(headers.get("Nats-Marker-Reason", ""), "PUT")
    match headers.get("KV-Operation"):
        case "DEL":
            operation = "DEL"
        case "PURGE":
            operation = "PURGE"
    return Entry(key, message.data if operation == "PUT" else b"", revision, operation, created)


class _Dead(Exception):
    """This consumer is of no more use."""


class _Consumer:
    """One life of a watch: takes the messages of one consumer in order, and notices when one is missing."""

    def __init__(self, watch: "Watch", prefix: str, respond: Callable[[str], None], target: int) -> None:
        self.watch = watch
        self.prefix = prefix
        self.respond = respond
        self.target = target
        self.delivered = 0
        self.content = 0
        self.heard = True
        self.dead = trio.Event()
        self.why = ""

    def die(self, why: str) -> None:
        self.why = self.why or why
        self.dead.set()

    def receive(self, message: Message) -> None:
        if self.dead.is_set():
            return
        self.heard = True
        # Not by its headers: those of a stored message are its writer's, who may be anybody.
        if not message.subject.startswith(self.prefix):
            self._control(message)
            return
        # $JS.ACK.<stream>.<consumer>.<tries>.<stream sequence>.<consumer sequence>.<nanoseconds>.<pending>, or with
        # domain and account in front and a token behind.
        parts = message.reply.split(".")
        parts = parts[6:11] if len(parts) > 10 else parts[4:9]
        try:
            _, revision, number, stamp, pending = map(int, parts)
        except ValueError:
            self.die("a message came that no consumer sends")
            return
        if number != self.delivered + 1:
            self.die("a message of the consumer was lost")
            return
        # What was there when the consumer was made: a key that is written meanwhile is told behind the target.
        self.content = self.content or number + pending
        self.delivered = number
        key = message.subject.removeprefix(self.prefix)
        self.watch.tell(entry_of(key, message, revision, stamp / _SECOND))
        # With nothing pending, all up to the target has been told, even if what was written last is gone since.
        self.watch.reach(
            max(revision, self.target) if pending == 0 else revision,
            caught_up=pending == 0 or number >= self.content,
        )

    def _control(self, message: Message) -> None:
        # Flow control: the server waits for an empty answer, to the request or to the subject a heartbeat names.
        answer = message.reply or message.headers.get("Nats-Consumer-Stalled", "")
        if answer:
            self.respond(answer)
        last = message.headers.get("Nats-Last-Consumer", "")
        if last.isdecimal() and int(last) > self.delivered:
            self.die("a message of the consumer was lost")


class Watch:
    """What ``KeyValue.watch`` opens.

    Its handler hears, in this order and again and again:

    1. ``Begin``; an ``Entry`` for the last write of each key, deletions included, in the order of their revisions
    2. ``CaughtUp``; from now an ``Entry`` for each write (of a burst on one key, at least the last)
    3. ``Lost``, when the consumer, the bucket or the connection is gone; a bucket that is missing, re-made or not yet
       made is waited for, and then it goes on with 1

    A handler that raises is logged; the watch goes on.

    Attributes:
        fresh: whether it has caught up and nothing is known to be lost; of use for a health page. Before an answer is
            given from what was heard, call ``confirm``: a consumer can be dead for seconds before it is noticed.
        reason: why it isn't fresh.
        sequence: everything up to this sequence of the bucket has been told.
    """

    def __init__(self, store: "KeyValue", handler: Handler, keys: str) -> None:
        self.fresh = False
        self.reason = "not read yet"
        self.sequence = 0
        self._store = store
        self._handler = handler
        self._keys = keys
        self._created = ""
        self._consumer: _Consumer | None = None
        self._moved: trio.Event | None = None
        self._retry = trio.Event()

    def running(self) -> AbstractAsyncContextManager[None]:
        """Runs it while the context is open."""
        return beside(self._run)

    async def confirm(self, timeout: float = 1.0) -> "Status":
        """Returns when everything that was in the bucket at the time of the call has been told to the handler.

        It asks the server for the bucket's last sequence and waits until the watch has come that far. For a watch of
        all keys only.

        Args:
            timeout: seconds for all of it.

        Returns:
            The server's word on the bucket: everything up to its ``last_sequence`` has been told.

        Raises:
            Stale: it has not come that far in time; says why. What is known must not be given as an answer.
            BusError: the server could not be asked (as ``KeyValue.status``).
            ValueError: this watch sees only a part of the bucket.
        """
        if self._keys != ">":
            raise ValueError("a watch of a part can't tell whether it has heard everything")
        heard_before = self.sequence
        with trio.move_on_after(timeout):
            if not self.fresh:
                self._retry.set()  # someone waits: no long pause now
            status = await self._store.status()
            if self._created not in ("", status.created) and self._consumer:
                self._consumer.die("the bucket was made anew")
            while not (self.fresh and self._created == status.created and self.sequence >= status.last_sequence):
                if self._moved is None:
                    self._moved = trio.Event()
                await self._moved.wait()
            return status
        if self.fresh and self.sequence == heard_before and self._consumer:
            # Nothing moves though something should: whatever was written last is gone, or the consumer is.
            self._consumer.die("the consumer is behind and does not move")
        raise Stale(f"{self._store.bucket}: {self.reason or 'the watch is behind'}")

    def doubt(self, why: str) -> None:
        """What was heard is not what is there: reads all of it anew.

        For a caller who knows more than a watch can: a purge takes keys away, and no watch is told of it.
        """
        if self._consumer:
            self._consumer.die(why)

    def tell(self, event: Event) -> None:
        """Hands one event to the handler."""
        try:
            self._handler(event)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # the edge of one event
            log.exception("An event of bucket %s was not handled", self._store.bucket)

    def reach(self, sequence: int, *, caught_up: bool) -> None:
        """Everything up to ``sequence`` has been told."""
        self.sequence = max(self.sequence, sequence)
        if caught_up and not self.fresh:
            self.fresh, self.reason = True, ""
            self.tell(CaughtUp(self.sequence))
        if self._moved is not None:
            self._moved.set()
            self._moved = None

    async def _run(self) -> None:
        failures = 0
        while True:
            await self._store.bus.wait_connected()
            try:
                await self._live()
            except (BusError, _Dead) as error:
                failures = 0 if self.fresh else failures + 1
                if self.fresh or self.reason != str(error):
                    log.warning("The watch of bucket %s: %s", self._store.bucket, error)
                self.fresh, self.reason = False, str(error)
                self.tell(Lost(self.reason))
            self._retry = trio.Event()
            with trio.move_on_after(PAUSE[min(failures, len(PAUSE) - 1)]):
                await self._retry.wait()
                await trio.sleep(PAUSE[0])  # however often someone asks

    async def _live(self) -> None:
        store, bus = self._store, self._store.bus
        epoch = bus.epoch
        status = await store.status()
        inbox = bus.new_inbox()

        def respond(reply: str) -> None:
            if bus.connected:
                bus.publish(reply, b"")

        consumer = _Consumer(self, store.stored_prefix, respond, status.last_sequence)
        async with bus.subscribe(inbox, consumer.receive):
            self._created, self.sequence = status.created, 0
            self.tell(Begin())
            self._consumer = consumer
            try:
                pending = await self._create(inbox)
                if pending == 0:
                    self.reach(status.last_sequence, caught_up=True)
                async with beside(lambda: _until_epoch_changes(bus, epoch, consumer)):
                    await _until_dead(consumer)
            finally:
                self._consumer = None
        raise _Dead(consumer.why)

    async def _create(self, inbox: str) -> int:
        store = self._store
        config: dict[str, object] = {
            "deliver_subject": inbox,
            "deliver_policy": "last_per_subject",
            "ack_policy": "none",
            "replay_policy": "instant",
            "max_deliver": 1,
            "filter_subject": store.stored_prefix + self._keys,
            "flow_control": True,
            "idle_heartbeat": round(HEARTBEAT * _SECOND),
            "inactive_threshold": round(LOST_INTEREST * _SECOND),
            "mem_storage": True,
            "num_replicas": 1,
            # A server whose JetStream was switched off and on takes each request twice: the name makes it one consumer.
            "name": token_hex(8),
        }
        verb = f"CONSUMER.CREATE.{store.stream}"
        if self._keys != ">":
            verb = f"{verb}.{config['name']}.{config['filter_subject']}"
        answer = await store.api(verb, {"stream_name": store.stream, "config": config})
        pending = answer.get("num_pending")
        return pending if isinstance(pending, int) else 1


async def _until_dead(consumer: _Consumer) -> None:
    while not consumer.dead.is_set():
        consumer.heard = False
        with trio.move_on_after(SILENCE):
            await consumer.dead.wait()
        if not consumer.heard:
            consumer.die(f"no sign of life from the server for {SILENCE:g} s")


async def _until_epoch_changes(bus: Bus, epoch: int, consumer: _Consumer) -> None:
    await bus.wait_epoch_change(epoch)
    consumer.die("the connection was made anew")
