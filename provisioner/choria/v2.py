"""Version 2 of the protocol: provider ``choria``, Ed25519 keys and JWT (wire-protocol 4)."""

import hashlib
import secrets
import time

from attrs import field, frozen

from provisioner.choria import filter as filters
from provisioner.choria import ids, transport
from provisioner.choria.encoding import Layer, b64, dumps
from provisioner.choria.security import Signer
from provisioner.choria.wire import Reply, Request, check_time, checked_request
from provisioner.errors import BadReply

REQUEST = "io.choria.protocol.v2.request"
REPLY = "io.choria.protocol.v2.reply"
SECURE_REQUEST = "io.choria.protocol.v2.secure_request"
SECURE_REPLY = "io.choria.protocol.v2.secure_reply"
SHORTEST_TTL = 1


@frozen
class SecureRequest:
    """The signed layer: ``request`` is the request's JSON, ``caller`` the caller's JWT as its file has it."""

    request: bytes
    signature: bytes
    caller: str


@frozen
class V2:
    """The wire of version 2; see ``wire.Wire``.

    Attributes:
        caller: our caller id: the token's ``callerid`` as it stands, such as ``provisioner_signer``.
        signer: ``security.SeedSigner``.
    """

    caller: str
    signer: Signer = field(repr=False)
    version: int = field(default=2, init=False)

    def new_request_id(self) -> str:
        """A KSUID of this second."""
        return ids.ksuid(int(time.time()), secrets.token_bytes(ids.KSUID_PAYLOAD_BYTES))

    def sign_request(self, request: Request) -> str:
        """See ``wire.Wire``."""
        inner = dumps(
            {
                "protocol": REQUEST,
                "message": b64(request.payload),
                "id": request.id,
                "sender": request.sender,
                "caller": request.caller,
                "collective": request.collective,
                "agent": request.agent,
                "ttl": request.ttl,
                "time": request.time_ns,
                "filter": request.filter.as_json(),
            }
        ).encode()
        secure = {
            "protocol": SECURE_REQUEST,
            "request": b64(inner),
            "signature": self.signer.sign(inner),
            "caller": self.signer.credential,
        }
        return dumps(secure)

    def address_request(self, signed: str, *, sender: str, url: str, reply_to: str) -> bytes:
        """See ``wire.Wire``."""
        return transport.encode(transport.V2, signed, sender=sender, url=url, reply_to=reply_to)

    def open_request(self, data: bytes) -> tuple[transport.Transport, SecureRequest]:
        """The two outer layers of a request, for whoever wants to verify the signature.

        Raises:
            BadReply: they are no such layers.
        """
        outer = transport.decode(transport.V2, data)
        secure = Layer.decode(outer.body, "secure request")
        secure.require_protocol(SECURE_REQUEST)
        secure.filled("signature")
        opened = SecureRequest(
            request=secure.base64("request"), signature=secure.base64("signature"), caller=secure.filled("caller")
        )
        return outer, opened

    def decode_request(self, data: bytes) -> Request:
        """See ``wire.Wire``."""
        outer, secure = self.open_request(data)
        layer = Layer.decode(secure.request, "request")
        layer.require_protocol(REQUEST)
        request = Request(
            id=layer.filled("id"),
            agent=layer.filled("agent"),
            collective=layer.filled("collective"),
            sender=layer.filled("sender"),
            caller=layer.filled("caller"),
            ttl=layer.integer("ttl"),
            time_ns=layer.integer("time"),
            filter=filters.decode(layer.layer("filter")) if "filter" in layer else filters.Filter(),
            payload=layer.base64("message"),
            reply_to=outer.reply_to,
        )
        return checked_request(request, shortest_ttl=SHORTEST_TTL)

    def encode_reply(self, reply: Reply, *, url: str) -> bytes:
        """See ``wire.Wire``."""
        inner = dumps(
            {
                "protocol": REPLY,
                "message": b64(reply.payload),
                "request": reply.request,
                "sender": reply.sender,
                "agent": reply.agent,
                "time": reply.time_ns,
            }
        ).encode()
        secure = {"protocol": SECURE_REPLY, "reply": b64(inner), "hash": _hash(inner)}
        return transport.encode(transport.V2, dumps(secure), sender=reply.sender, url=url)

    def decode_reply(self, data: bytes) -> Reply:
        """See ``wire.Wire``. A signature, when there is one, is not looked at: clients never do (4.7)."""
        outer = transport.decode(transport.V2, data)
        secure = Layer.decode(outer.body, "secure reply")
        secure.require_protocol(SECURE_REPLY)
        inner = secure.base64("reply")
        if secure.text("hash") != _hash(inner):
            raise BadReply("the hash of the reply is wrong")
        layer = Layer.decode(inner, "reply")
        layer.require_protocol(REPLY)
        reply = Reply(
            request=layer.text("request"),
            agent=layer.text("agent"),
            sender=layer.filled("sender"),
            time_ns=layer.integer("time"),
            payload=layer.base64("message"),
        )
        check_time(reply.time_ns)
        return reply

    def reply_sender(self, data: bytes) -> str:
        """See ``wire.Wire``."""
        return transport.sender(transport.V2, data)


def _hash(inner: bytes) -> str:
    return b64(hashlib.sha256(inner).digest())
