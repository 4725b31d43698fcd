"""A request as one program makes and publishes it, for tests that ask servers by hand."""

from provisioner.choria.wire import Request, Wire


def encode_request(wire: Wire, request: Request, *, url: str) -> bytes:
    """The request, signed and addressed."""
    return wire.address_request(wire.sign_request(request), sender=request.sender, url=url, reply_to=request.reply_to)
