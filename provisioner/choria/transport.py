"""The outermost layer: subject to answer to, who sent it, which brokers it passed (wire-protocol 3.2, 4.2)."""

from attrs import frozen

from provisioner.choria.encoding import Layer, b64, dumps


@frozen
class Names:
    """What the two versions call the same things."""

    protocol: str
    reply: str
    sender: str
    trace: str


V1 = Names(protocol="choria:transport:1", reply="reply-to", sender="mc_sender", trace="seen-by")
V2 = Names(protocol="io.choria.protocol.v2.transport", reply="reply", sender="sender", trace="trace")


@frozen
class Transport:
    """A decoded transport. ``body`` is the secure layer, still encoded; ``reply_to`` is ``""`` in a reply."""

    body: bytes
    sender: str
    reply_to: str


def encode(names: Names, body: str, *, sender: str, url: str, reply_to: str = "") -> bytes:
    """One message as it is published.

    Args:
        names: ``V1`` or ``V2``.
        body: the JSON text of the secure layer.
        sender: identity of whoever sends it.
        url: the broker it is connected to, for the trace.
        reply_to: where to answer; ``""`` in a reply.
    """
    headers: dict[str, object] = {names.reply: reply_to} if reply_to else {}
    headers[names.sender] = sender
    headers[names.trace] = [[url, sender, url]]
    return dumps({"protocol": names.protocol, "data": b64(body.encode()), "headers": headers}).encode()


def decode(names: Names, data: bytes) -> Transport:
    """Opens one message as it was received.

    Raises:
        BadReply: not a transport of that version.
    """
    layer = Layer.decode(data, "transport")
    layer.require_protocol(names.protocol)
    headers = layer.layer("headers")
    return Transport(
        body=layer.base64("data"),
        sender=headers.optional_text(names.sender),
        reply_to=headers.optional_text(names.reply),
    )


def sender(names: Names, data: bytes) -> str:
    """The identity in the transport header, without opening the rest: all that discovery looks at (5.4).

    Raises:
        BadReply: not a transport of that version, or no sender in it.
    """
    layer = Layer.decode(data, "transport")
    layer.require_protocol(names.protocol)
    return layer.layer("headers").filled(names.sender)
