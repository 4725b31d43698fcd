"""Version 1 of the protocol: providers ``file``, ``puppet`` and their like, x509 (wire-protocol 3)."""

import hashlib
from uuid import uuid4

from attrs import field, frozen

from provisioner.choria import filter as filters
from provisioner.choria import transport
from provisioner.choria.encoding import Layer, b64, dumps
from provisioner.choria.security import INSECURE, Signer
from provisioner.choria.wire import NANOSECOND, Reply, Request, check_time, checked_request
from provisioner.errors import BadReply

REQUEST = "choria:request:1"
REPLY = "choria:reply:1"
SECURE_REQUEST = "choria:secure:request:1"
SECURE_REPLY = "choria:secure:reply:1"
SHORTEST_TTL = 30
ID_LENGTH = 32


@frozen
class SecureRequest:
    """The signed layer: ``message`` is the request's JSON, ``signature`` base64 or a literal, ``pubcert`` PEM."""

    message: str
    signature: str
    pubcert: str


@frozen
class V1:
    """The wire of version 1; see ``wire.Wire``.

    Attributes:
        caller: our caller id, such as ``choria=prov.example.net``.
        signer: ``security.CertificateSigner``, or ``security.INSECURE`` for ``choria_insecure``.
    """

    caller: str
    signer: Signer = field(default=INSECURE, repr=False)
    version: int = field(default=1, init=False)

    def new_request_id(self) -> str:
        """A random UUID as 32 hex digits."""
        return uuid4().hex

    def sign_request(self, request: Request) -> str:
        """See ``wire.Wire``. The payload must be UTF-8: version 1 carries it as text.

        Raises:
            ValueError: it isn't.
        """
        envelope = {
            "requestid": request.id,
            "senderid": request.sender,
            "callerid": request.caller,
            "collective": request.collective,
            "agent": request.agent,
            "ttl": request.ttl,
            "time": request.time_ns // NANOSECOND,
            "filter": request.filter.as_json(),
        }
        message = dumps({"protocol": REQUEST, "message": request.payload.decode(), "envelope": envelope})
        secure = {
            "protocol": SECURE_REQUEST,
            "message": message,
            "signature": self.signer.sign(message.encode()),
            "pubcert": self.signer.credential,
        }
        return dumps(secure)

    def address_request(self, signed: str, *, sender: str, url: str, reply_to: str) -> bytes:
        """See ``wire.Wire``."""
        return transport.encode(transport.V1, signed, sender=sender, url=url, reply_to=reply_to)

    def open_request(self, data: bytes) -> tuple[transport.Transport, SecureRequest]:
        """The two outer layers of a request, for whoever wants to verify the signature.

        Raises:
            BadReply: they are no such layers.
        """
        outer = transport.decode(transport.V1, data)
        secure = Layer.decode(outer.body, "secure request")
        secure.require_protocol(SECURE_REQUEST)
        opened = SecureRequest(
            message=secure.filled("message"), signature=secure.filled("signature"), pubcert=secure.filled("pubcert")
        )
        return outer, opened

    def decode_request(self, data: bytes) -> Request:
        """See ``wire.Wire``."""
        outer, secure = self.open_request(data)
        layer = Layer.decode(secure.message, "request")
        layer.require_protocol(REQUEST)
        envelope = layer.layer("envelope")
        request = Request(
            id=envelope.filled("requestid"),
            agent=envelope.filled("agent"),
            collective=envelope.filled("collective"),
            sender=envelope.filled("senderid"),
            caller=envelope.filled("callerid"),
            ttl=envelope.integer("ttl"),
            time_ns=envelope.integer("time") * NANOSECOND,
            filter=filters.decode(envelope.layer("filter")),
            payload=layer.text("message").encode(),
            reply_to=outer.reply_to,
        )
        if len(request.id) != ID_LENGTH:
            raise BadReply(f"requestid of the request has {len(request.id)} characters, not {ID_LENGTH}")
        return checked_request(request, shortest_ttl=SHORTEST_TTL)

    def encode_reply(self, reply: Reply, *, url: str) -> bytes:
        """See ``wire.Wire``. The payload must be UTF-8.

        Raises:
            ValueError: it isn't.
        """
        envelope = {
            "requestid": reply.request,
            "senderid": reply.sender,
            "agent": reply.agent,
            "time": reply.time_ns // NANOSECOND,
        }
        message = dumps({"protocol": REPLY, "message": reply.payload.decode(), "envelope": envelope})
        secure = {"protocol": SECURE_REPLY, "message": message, "hash": _hash(message)}
        return transport.encode(transport.V1, dumps(secure), sender=reply.sender, url=url)

    def decode_reply(self, data: bytes) -> Reply:
        """See ``wire.Wire``."""
        outer = transport.decode(transport.V1, data)
        secure = Layer.decode(outer.body, "secure reply")
        secure.require_protocol(SECURE_REPLY)
        message = secure.filled("message")
        if secure.text("hash") != _hash(message):
            raise BadReply("the hash of the reply is wrong")
        layer = Layer.decode(message, "reply")
        layer.require_protocol(REPLY)
        envelope = layer.layer("envelope")
        reply = Reply(
            request=envelope.text("requestid"),
            agent=envelope.text("agent"),
            sender=envelope.filled("senderid"),
            time_ns=envelope.integer("time") * NANOSECOND,
            payload=layer.text("message").encode(),
        )
        check_time(reply.time_ns)
        return reply

    def reply_sender(self, data: bytes) -> str:
        """See ``wire.Wire``."""
        return transport.sender(transport.V1, data)


def _hash(message: str) -> str:
    return b64(hashlib.sha256(message.encode()).digest())
