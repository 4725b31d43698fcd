"""JetStream's part of the memory bus: as much of it as key-value buckets need.

Time is Trio's clock, so a bucket's TTL and a watch's heartbeats follow a ``MockClock``.

    broker = MemoryBroker()
    streams = MemoryStreams(broker)
    await KeyValue(broker.connect(), "b").create_bucket(ttl=60)
    streams.buckets.clear()          # every bucket is gone at once
    streams.stop(); streams.start()  # JetStream off and on; the buckets stay
"""

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from itertools import count
from typing import Any

import trio
from attrs import define, field

from provisioner import strictjson
from provisioner.bus.interface import Message
from provisioner.bus.link import NO_RESPONDERS
from provisioner.bus.memory import MemoryBroker
from provisioner.bus.subjects import matches

_SECOND = 1_000_000_000
VERBS = ("STREAM.CREATE", "STREAM.DELETE", "STREAM.INFO", "DIRECT.GET", "CONSUMER.CREATE", "CONSUMER.DELETE")


class _Refused(Exception):
    def __init__(self, code: int, err_code: int, description: str) -> None:
        self.error = {"code": code, "err_code": err_code, "description": description}
        super().__init__(description)


@define(eq=False)
class Stored:
    """One message of a bucket."""

    subject: str
    data: bytes
    headers: Mapping[str, str]
    sequence: int
    at: float


@define(eq=False)
class Bucket:
    """One stream ``KV_<bucket>``. ``messages`` are in the order of their sequences."""

    config: dict[str, Any]
    created: str
    last: int = 0
    messages: list[Stored] = field(factory=list)
    consumers: dict[str, "_Consumer"] = field(factory=dict)

    def expire(self) -> None:
        """Drops what is older than the bucket's TTL."""
        age = self.config.get("max_age", 0) / _SECOND
        if age:
            now = trio.current_time()
            self.messages = [stored for stored in self.messages if now - stored.at < age]

    def last_of(self, subject: str) -> Stored | None:
        """The last message of one subject."""
        return next((stored for stored in reversed(self.messages) if stored.subject == subject), None)


@define(eq=False)
class _Consumer:
    name: str
    deliver: str
    pattern: str
    heartbeat: float
    delivered: int = 0
    sent_at: float = 0.0


class MemoryStreams:
    """Answers JetStream's API on a broker.

    Args:
        broker: where.
        api_prefix: of the API; with another than ``$JS.API`` writes are taken below it too, as a Choria broker does.
        verbs: which parts of the API there are, of ``VERBS``; a Choria broker has only ``STREAM.INFO``.

    Attributes:
        buckets: by stream name, ``KV_<bucket>``; may be changed to simulate an accident.
    """

    def __init__(self, broker: MemoryBroker, *, api_prefix: str = "$JS.API", verbs: Collection[str] = VERBS) -> None:
        self.buckets: dict[str, Bucket] = {}
        self._broker = broker
        self._bus = broker.connect()
        self._prefix = api_prefix
        self._verbs = verbs
        self._births = count(1)
        self._running = False
        self.start()

    def start(self) -> None:
        """Answers from now on."""
        self._running = True
        for verb in self._verbs:
            for tail in ("*", "*.>"):
                self._bus.listen(f"{self._prefix}.{verb}.{tail}", self._ask)
        self._bus.listen("$KV.>", self._write)
        if self._prefix != "$JS.API":
            self._bus.listen(f"{self._prefix}.$KV.>", self._write)

    def stop(self) -> None:
        """Is off from now on: nobody answers, and watches fall silent."""
        self._running = False
        self._bus.unsubscribe_all()
        for bucket in self.buckets.values():
            bucket.consumers.clear()

    # --- requests --------------------------------------------------------------------------------------------------

    def _ask(self, message: Message) -> None:
        verb, stream, rest = self._parsed(message.subject)
        if verb == "DIRECT.GET":
            self._direct_get(message, stream, rest)
            return
        try:
            asked = strictjson.loads(message.data or b"{}")
            answer = {
                "STREAM.CREATE": self._create,
                "STREAM.DELETE": self._delete,
                "STREAM.INFO": self._info,
                "CONSUMER.CREATE": self._consume,
                "CONSUMER.DELETE": self._forget,
            }[verb](stream, rest, asked)
        except _Refused as refusal:
            answer = {"error": refusal.error}
        if message.reply:
            self._bus.publish(message.reply, strictjson.dumps(answer).encode())

    def _parsed(self, subject: str) -> tuple[str, str, str]:
        family, act, stream, *rest = subject.removeprefix(self._prefix + ".").split(".")
        return f"{family}.{act}", stream, ".".join(rest)

    def _bucket(self, stream: str) -> Bucket:
        if stream not in self.buckets:
            raise _Refused(404, 10059, "stream not found")
        self.buckets[stream].expire()
        return self.buckets[stream]

    def _create(self, stream: str, _rest: str, asked: dict[str, Any]) -> dict[str, Any]:
        if stream in self.buckets:
            if self.buckets[stream].config != asked:
                raise _Refused(400, 10058, "stream name already in use with a different configuration")
        else:
            born = f"{datetime.fromtimestamp(trio.current_time(), UTC).isoformat()}#{next(self._births)}"
            self.buckets[stream] = Bucket(asked, born)
        return self._info(stream, "", {})

    def _delete(self, stream: str, _rest: str, _asked: dict[str, Any]) -> dict[str, Any]:
        self._bucket(stream)
        del self.buckets[stream]
        return {"success": True}

    def _info(self, stream: str, _rest: str, _asked: dict[str, Any]) -> dict[str, Any]:
        bucket = self._bucket(stream)
        size = sum(len(stored.subject) + len(stored.data) for stored in bucket.messages)
        state = {"messages": len(bucket.messages), "bytes": size, "last_seq": bucket.last}
        return {"config": bucket.config, "created": bucket.created, "state": state}

    def _direct_get(self, message: Message, stream: str, subject: str) -> None:
        if stream not in self.buckets:
            self._nobody(message)
            return
        headers, data = {"Status": "404", "Description": "Message Not Found"}, b""
        if stored := self._bucket(stream).last_of(subject):
            data = stored.data
            headers = dict(stored.headers) | {
                "Nats-Stream": stream,
                "Nats-Subject": subject,
                "Nats-Sequence": str(stored.sequence),
                "Nats-Time-Stamp": datetime.fromtimestamp(stored.at, UTC).isoformat().replace("+00:00", "Z"),
            }
        self._bus.publish(message.reply, data, headers=headers)

    def _nobody(self, message: Message) -> None:
        """In a server each bucket listens on its own subjects: without it, nobody does."""
        if message.reply:
            self._bus.publish(message.reply, b"", headers={"Status": NO_RESPONDERS})

    def _write(self, message: Message) -> None:
        subject = message.subject.removeprefix(f"{self._prefix}.")
        stream = "KV_" + subject.split(".")[1]
        try:
            answer = self._store(self._bucket(stream), subject, message)
        except _Refused as refusal:
            if refusal.error["err_code"] == 10059:
                self._nobody(message)
                return
            answer = {"error": refusal.error}
        if message.reply:
            self._bus.publish(message.reply, strictjson.dumps({"stream": stream} | answer).encode())

    def _store(self, bucket: Bucket, subject: str, message: Message) -> dict[str, Any]:
        last = bucket.last_of(subject)
        now = last.sequence if last else 0
        expected = message.headers.get("Nats-Expected-Last-Subject-Sequence")
        if expected is not None and int(expected) != now:
            raise _Refused(400, 10071, f"wrong last sequence: {now}")
        limit = bucket.config.get("max_msg_size", -1)
        if 0 <= limit < len(message.data):
            raise _Refused(400, 10054, "message size exceeds maximum allowed")
        bucket.last += 1
        stored = Stored(subject, message.data, message.headers, bucket.last, trio.current_time())
        bucket.messages.append(stored)
        of_key = [other for other in bucket.messages if other.subject == subject]
        for surplus in of_key[: -bucket.config.get("max_msgs_per_subject", 1)]:
            bucket.messages.remove(surplus)
        for consumer in bucket.consumers.values():
            if matches(consumer.pattern, subject):
                self._deliver(consumer, stored, 0)
        return {"seq": bucket.last}

    # --- watches ---------------------------------------------------------------------------------------------------

    def _consume(self, stream: str, rest: str, asked: dict[str, Any]) -> dict[str, Any]:
        bucket, config = self._bucket(stream), asked["config"]
        name, _, subject = rest.partition(".")
        if subject and subject != config["filter_subject"]:
            raise _Refused(400, 10131, "Consumer create request did not match filtered subject from create subject")
        consumer = _Consumer(
            name or config.get("name") or f"c{next(self._births)}",
            config["deliver_subject"],
            config["filter_subject"],
            config["idle_heartbeat"] / _SECOND,
        )
        bucket.consumers[consumer.name] = consumer
        wanted = [stored for stored in bucket.messages if matches(consumer.pattern, stored.subject)]
        latest = {stored.subject: stored for stored in wanted}
        told = sorted(latest.values(), key=lambda stored: stored.sequence)
        for pending, stored in zip(range(len(told) - 1, -1, -1), told, strict=True):
            self._deliver(consumer, stored, pending)
        trio.lowlevel.spawn_system_task(self._beat, bucket, consumer)
        return {"name": consumer.name, "num_pending": len(told)}

    def _forget(self, stream: str, name: str, _asked: dict[str, Any]) -> dict[str, Any]:
        self._bucket(stream).consumers.pop(name, None)
        return {"success": True}

    def _deliver(self, consumer: _Consumer, stored: Stored, pending: int) -> None:
        consumer.delivered += 1
        consumer.sent_at = trio.current_time()
        stream = "KV_" + stored.subject.split(".")[1]
        numbers = f"1.{stored.sequence}.{consumer.delivered}.{round(stored.at * _SECOND)}.{pending}"
        reply = f"$JS.ACK.{stream}.{consumer.name}.{numbers}"
        self._broker.send(consumer.deliver, Message(stored.subject, stored.data, reply, stored.headers))

    async def _beat(self, bucket: Bucket, consumer: _Consumer) -> None:
        while True:
            await trio.sleep(consumer.heartbeat)
            alive = bucket in self.buckets.values() and bucket.consumers.get(consumer.name) is consumer
            if not (self._running and alive and self._broker.listens(consumer.deliver)):
                bucket.consumers.pop(consumer.name, None)
                return
            if trio.current_time() - consumer.sent_at < consumer.heartbeat:
                continue
            headers = {
                "Status": "100",
                "Description": "Idle Heartbeat",
                "Nats-Last-Consumer": str(consumer.delivered),
                "Nats-Last-Stream": str(bucket.last),
            }
            self._broker.send(consumer.deliver, Message(consumer.deliver, b"", headers=headers))
