"""JetStream key-value buckets over any ``Bus``: compare-and-set, status and a watch that is never silently stale.

Speaks JetStream's own requests, since nats-py's client doesn't tell a refused request from a slow one, leaves a watch
deaf for 20 s after a restart of the server, and asks for more rights than it needs. Asked of the server are only
``STREAM.INFO.<stream>``, ``DIRECT.GET.<stream>.>``, ``CONSUMER.CREATE.<stream>`` (with name and filter for a watch of a
part), and publishing to ``$KV.<bucket>.>``; answers come to the connection's own inbox. With another API prefix than
``$JS.API`` (a Choria broker: ``choria.streams``) writes go to ``<prefix>.$KV.<bucket>.>`` (wire-protocol 10.1).
"""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Literal

from attrs import frozen

from provisioner import strictjson
from provisioner.bus.interface import Bus, Message
from provisioner.bus.watch import Begin, CaughtUp, Entry, Event, Handler, Lost, Watch, entry_of
from provisioner.errors import (
    BadReply,
    BucketMissing,
    BusError,
    PermissionDenied,
    RevisionConflict,
    StoreError,
)

__all__ = ["MAX_KEY", "Begin", "CaughtUp", "Entry", "Event", "KeyValue", "Lost", "Status", "Watch", "check_key"]

TIMEOUT = 2.0
"""Seconds for one request to the store, unless the caller says otherwise."""
MAX_KEY = 768
"""Characters of a key: a subject has to fit into a server's line of 4096 bytes with everything else."""
NANOSECONDS = 1_000_000_000

_KEY = re.compile(r"[-/_=a-zA-Z0-9]+(\.[-/_=a-zA-Z0-9]+)*")
_BUCKET = re.compile(r"[-_a-zA-Z0-9]{1,128}")
_FILTER = re.compile(r"(([-/_=a-zA-Z0-9]+|\*)\.)*([-/_=a-zA-Z0-9]+|\*|>)")

_STREAM_NOT_FOUND = 10059
_WRONG_LAST_SEQUENCE = (10071, 10164)
_EXPECTED = "Nats-Expected-Last-Subject-Sequence"


def check_key(key: str) -> None:
    """Refuses what is not the name of a key. A server would leave such a request unanswered, or store it under it.

    Raises:
        ValueError: empty, over ``MAX_KEY`` characters, an empty token, or a character other than ``-/_=.a-zA-Z0-9``.
    """
    if len(key) > MAX_KEY or not _KEY.fullmatch(key):
        raise ValueError(f"not a key: {key[:100]!r}")


@frozen
class Status:
    """A bucket as its server describes it.

    Attributes:
        bucket: its name.
        created: when it was made, as the server writes it: another text means another bucket of the same name.
        last_sequence: the sequence of the latest write of any key; it never falls while the bucket lives.
        values: how many messages are stored, delete markers included.
        ttl: seconds after which a value goes by itself; 0: never.
        history: how many values are kept for one key.
        size: bytes stored.
    """

    bucket: str
    created: str
    last_sequence: int
    values: int
    ttl: float
    history: int
    size: int


class KeyValue:
    """One bucket. It is bound, not opened: it need not exist, nor a connection, until something is asked.

    Every method but ``watch`` makes one request (``create`` up to three) and gives the store's own answer or an error,
    never something remembered. Errors of all of them, beside those named:

        ConnectionLost: there is no connection, or it went away while waiting: a write may have been done or not.
        NoReply: no answer within ``timeout``; a write may have been done or not. NoResponders (a NoReply), at once:
            JetStream is off, or, for ``get``, the bucket isn't there.
        PermissionDenied: this connection may not do that.
        BucketMissing: the server knows no such bucket. StoreError: another refusal, in the server's words.
        BadReply: the answer can't be read.

    Args:
        bus: the connection.
        bucket: the name; ``-_a-zA-Z0-9``.
        api_prefix: of JetStream's API: ``$JS.API``, or ``choria.streams`` on a Choria broker.
        timeout: seconds for one request.

    Raises:
        ValueError: not the name of a bucket.
    """

    def __init__(self, bus: Bus, bucket: str, *, api_prefix: str = "$JS.API", timeout: float = TIMEOUT) -> None:
        if not _BUCKET.fullmatch(bucket):
            raise ValueError(f"not the name of a bucket: {bucket[:100]!r}")
        self.bus = bus
        self.bucket = bucket
        self.stream = f"KV_{bucket}"
        self._api_prefix = api_prefix
        self._timeout = timeout
        self.stored_prefix = f"$KV.{bucket}."
        self._write_prefix = self.stored_prefix if api_prefix == "$JS.API" else f"{api_prefix}.{self.stored_prefix}"

    async def status(self) -> Status:
        """Asks the server about the bucket."""
        found = await self.api(f"STREAM.INFO.{self.stream}")
        return Status(
            bucket=self.bucket,
            created=_get(found, str, "created"),
            last_sequence=_get(found, int, "state", "last_seq"),
            values=_get(found, int, "state", "messages"),
            ttl=_get(found, int, "config", "max_age") / NANOSECONDS,
            history=_get(found, int, "config", "max_msgs_per_subject"),
            size=_get(found, int, "state", "bytes"),
        )

    async def create_bucket(
        self,
        *,
        ttl: float = 0,
        history: int = 1,
        max_value_size: int = -1,
        storage: Literal["file", "memory"] = "file",
    ) -> None:
        """Makes the bucket; nothing happens if it is there with the same settings.

        Needs the right to ``STREAM.CREATE.<stream>``, which the services themselves never need.

        Args:
            ttl: seconds after which a value goes by itself; 0: never.
            history: values kept for one key.
            max_value_size: bytes of one value, headers included; -1: no limit but the server's.
            storage: where it is kept.

        Raises:
            StoreError: it exists with other settings, or can't be made.
        """
        age = round(ttl * NANOSECONDS)
        config = {
            "name": self.stream,
            "subjects": [f"{self.stored_prefix}>"],
            "max_msgs_per_subject": history,
            "max_age": age,
            "max_msg_size": max_value_size,
            "storage": storage,
            "discard": "new",
            "deny_delete": True,
            # With it, whoever may write one key could take away all others by a header.
            "allow_rollup_hdrs": False,
            "allow_direct": True,
            "num_replicas": 1,
        }
        if age:
            config["duplicate_window"] = min(age, 120 * NANOSECONDS)
        await self.api(f"STREAM.CREATE.{self.stream}", config)

    async def get(self, key: str) -> Entry | None:
        """Reads one key by direct get; None if it has no value. A replicated bucket may answer from a follower.

        Raises:
            ValueError: not a key.
        """
        check_key(key)
        found = await self._last(key)
        return None if found is None or found.deleted else found

    async def _last(self, key: str) -> Entry | None:
        subject = f"{self._api_prefix}.DIRECT.GET.{self.stream}.{self.stored_prefix}{key}"
        reply = await self.bus.request(subject, b"", timeout=self._timeout)
        status = reply.headers.get("Status")
        if status == "404":
            return None
        if status is not None:
            raise StoreError(f"{self.bucket}: {reply.headers.get('Description', status)[:200]}")
        try:
            stamp = datetime.fromisoformat(_whole_microseconds(reply.headers["Nats-Time-Stamp"]))
            return entry_of(key, reply, int(reply.headers["Nats-Sequence"]), stamp.timestamp())
        except (KeyError, ValueError):
            raise BadReply(f"{self.bucket}: the value of a key came without its sequence or time") from None

    async def put(self, key: str, value: bytes) -> int:
        """Writes a value whatever was there; gives its revision.

        Raises:
            ValueError: not a key.
        """
        check_key(key)
        return await self._write(key, value, {})

    async def create(self, key: str, value: bytes) -> int:
        """Writes a value if the key has none; gives its revision.

        Over a delete marker that can be read the value is written on condition that the marker is still the last.

        Raises:
            RevisionConflict: the key has a value, or a delete marker that can't be read (a Choria broker).
            ValueError: not a key.
        """
        check_key(key)
        try:
            return await self._write(key, value, {_EXPECTED: "0"})
        except RevisionConflict as conflict:
            try:
                last = await self._last(key)
            except (BusError, PermissionDenied):
                raise conflict from None
            if last is None or not last.deleted:
                raise
            return await self.update(key, value, last.revision)

    async def update(self, key: str, value: bytes, revision: int) -> int:
        """Writes a value if the key's last write was ``revision`` (0: if it has none); gives the new revision.

        Raises:
            RevisionConflict: the last write was another.
            ValueError: not a key.
        """
        check_key(key)
        return await self._write(key, value, {_EXPECTED: str(revision)})

    async def delete(self, key: str, revision: int | None = None) -> int:
        """Leaves a delete marker; gives its sequence.

        Takes also a name that no key should have, so that what a careless client stored can be removed.

        Args:
            key: the key.
            revision: only if that was its last write; None: whatever it was.

        Raises:
            RevisionConflict: the last write was another.
            ValueError: no subject can have that name.
        """
        condition = {} if revision is None else {_EXPECTED: str(revision)}
        return await self._write(key, b"", {"KV-Operation": "DEL"} | condition)

    async def _write(self, key: str, value: bytes, headers: dict[str, str]) -> int:
        subject = self._write_prefix + key
        reply = await self.bus.request(subject, value, timeout=self._timeout, headers=headers or None)
        revision: int = _get(self._decoded(reply), int, "seq")
        return revision

    @asynccontextmanager
    async def watch(self, handler: Handler, *, keys: str = ">") -> AsyncIterator[Watch]:
        """Tells ``handler`` all there is and all that comes, while the context is open. See ``Watch``.

        Args:
            handler: called as messages arrive, as that of ``Bus.subscribe``: it must not block.
            keys: which keys, a pattern with ``*`` and ``>``. All by default. For a part the consumer is asked for with
                name and filter in the subject, so that the server can hold a client to its own keys (mesh.md B7).

        Raises:
            ValueError: not a pattern of keys.
        """
        if len(keys) > MAX_KEY or not _FILTER.fullmatch(keys):
            raise ValueError(f"not a pattern of keys: {keys[:100]!r}")
        watch = Watch(self, handler, keys)
        async with watch.running():
            yield watch

    async def entries(self, *, timeout: float = 10.0) -> dict[str, Entry]:
        """Reads the whole bucket once: each key that has a value. All of it, or an error.

        Raises:
            Stale: it could not be read to its end within ``timeout`` seconds.
        """
        found: dict[str, Entry] = {}

        def keep(event: Event) -> None:
            if isinstance(event, Begin):
                found.clear()
            elif isinstance(event, Entry):
                found[event.key] = event

        status = await self.status()
        if status.values == 0:
            return {}
        async with self.watch(keep) as watch:
            await watch.confirm(timeout)
        return {key: entry for key, entry in found.items() if not entry.deleted}

    async def api(self, verb: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """One request to JetStream's API; gives its answer, decoded, or raises the error that it is."""
        data = b"" if body is None else strictjson.dumps(body).encode()
        return self._decoded(await self.bus.request(f"{self._api_prefix}.{verb}", data, timeout=self._timeout))

    def _decoded(self, reply: Message) -> dict[str, Any]:
        try:
            found = strictjson.loads(reply.data)
        except strictjson.NotJSON as error:
            raise BadReply(f"{self.bucket}: the store's answer: {error}") from None
        if not isinstance(found, dict):
            raise BadReply(f"{self.bucket}: the store's answer is not an object")
        if refusal := found.get("error"):
            code = refusal.get("err_code", 0) if isinstance(refusal, dict) else 0
            text = str(refusal.get("description", "") if isinstance(refusal, dict) else refusal)[:200]
            if code in _WRONG_LAST_SEQUENCE:
                raise RevisionConflict(f"{self.bucket}: {text}")
            kind = BucketMissing if code == _STREAM_NOT_FOUND else StoreError
            raise kind(f"{self.bucket}: {text}", code)
        return found


def _get(found: Any, kind: type[Any], *path: str) -> Any:
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    if not isinstance(found, kind) or isinstance(found, bool):
        raise BadReply(f"the store's answer has no {'.'.join(path)}")
    return found


def _whole_microseconds(stamp: str) -> str:
    """Go writes nine digits of a second; Python 3.11 reads six."""
    return re.sub(r"(\.\d{6})\d+", r"\1", stamp)
