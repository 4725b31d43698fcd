"""Choria requests and replies, whichever version of the protocol carries them; the same code is client and server.

Sans-IO: bytes in, values out. ``v1.V1`` and ``v2.V2`` are the two wires. A client makes a ``Request`` with the wire's
``caller`` and a ``new_request_id()``, signs and addresses it, publishes that and opens what comes back with
``decode_reply``; a server does the mirror image. Nothing that arrives can raise anything but ``BadReply``.
"""

from typing import Protocol

from attrs import frozen

from provisioner.choria.filter import Filter
from provisioner.errors import BadReply

NANOSECOND = 1_000_000_000
"""Nanoseconds in a second."""
DISCOVERY_PING = b"cGluZw=="
"""Payload of a discovery request: ``ping`` in base64, which a server takes off before it looks (wire-protocol 5.4)."""
DISCOVERY_PONG = b"pong"
"""Payload of a discovery reply."""
MAX_TTL = 365 * 86400
"""Seconds; a longer life makes no sense, and Go's duration overflows at 292 years."""
MAX_TIME = 1 << 63
"""Nanoseconds since 1970, as Go holds them."""


@frozen
class Request:
    """One request to an agent.

    Attributes:
        id: see ``Wire.new_request_id``.
        agent: such as ``choria_provision``.
        collective: such as ``provisioning``.
        sender: the requester's identity.
        caller: the requester's caller id (wire-protocol 3.5).
        ttl: seconds it may be answered for; version 1 wants at least 30.
        time_ns: when it was made, Unix nanoseconds. Version 1 carries whole seconds.
        filter: which servers it is for.
        payload: the agent's own bytes (``rpc.encode_rpc_request``, ``DISCOVERY_PING``).
        reply_to: subject to answer to; ``""`` for no answer.
    """

    id: str
    agent: str
    collective: str
    sender: str
    caller: str
    ttl: int
    time_ns: int
    filter: Filter
    payload: bytes
    reply_to: str

    def is_current(self, now_ns: int) -> bool:
        """Whether a server whose clock shows ``now_ns`` still answers it: within ``ttl`` either way (5.2)."""
        return abs(now_ns - self.time_ns) < self.ttl * NANOSECOND


@frozen
class Reply:
    """One reply from an agent.

    Attributes:
        request: id of the request it answers.
        agent: the agent that answers.
        sender: identity of the server, from the reply itself (not the transport).
        time_ns: when it was made, Unix nanoseconds. Version 1 carries whole seconds.
        payload: the agent's own bytes (``rpc.decode_rpc_reply``, ``DISCOVERY_PONG``).
    """

    request: str
    agent: str
    sender: str
    time_ns: int
    payload: bytes


class Wire(Protocol):
    """One version of the protocol with one caller's credential: keys are loaded once, when it is made."""

    @property
    def version(self) -> int:
        """1 or 2."""
        ...

    @property
    def caller(self) -> str:
        """Our caller id: what goes into ``Request.caller`` and the reply subject."""
        ...

    def new_request_id(self) -> str:
        """A fresh id of this version's form: 32 hex digits (1) or a KSUID (2)."""
        ...

    def sign_request(self, request: Request) -> str:
        """The signed layer of a request: all but ``reply_to``, so that several servers can be sent the same (5.6)."""
        ...

    def address_request(self, signed: str, *, sender: str, url: str, reply_to: str) -> bytes:
        """A signed request as it is published; ``url`` is the broker connected to, without credentials."""
        ...

    def decode_request(self, data: bytes) -> Request:
        """Opens a request and checks what a server's schema checks; the signature is not (3.3, 4.3).

        Raises:
            BadReply: it is no request of this version.
        """
        ...

    def encode_reply(self, reply: Reply, *, url: str) -> bytes:
        """A reply as it is published: with its hash, without signature, as a server in provisioning mode does."""
        ...

    def decode_reply(self, data: bytes) -> Reply:
        """Opens a reply and checks its hash. Whether request and sender are the expected ones is for the caller.

        Raises:
            BadReply: it is no reply of this version, or its hash is wrong.
        """
        ...

    def reply_sender(self, data: bytes) -> str:
        """The sender in the transport header of a reply, for discovery; the rest stays unopened (5.4).

        Raises:
            BadReply: no transport of this version, or no sender.
        """
        ...


def checked_request(request: Request, *, shortest_ttl: int) -> Request:
    """The request itself, if its numbers are such that a server takes it.

    Raises:
        BadReply: time or ttl out of range.
    """
    if not shortest_ttl <= request.ttl <= MAX_TTL:
        raise BadReply(f"ttl of the request is {request.ttl}, not {shortest_ttl} to {MAX_TTL} seconds")
    check_time(request.time_ns)
    return request


def check_time(time_ns: int) -> None:
    """Raises BadReply for a time that Go could not hold."""
    if not -MAX_TIME <= time_ns < MAX_TIME:
        raise BadReply("the time is out of range")
