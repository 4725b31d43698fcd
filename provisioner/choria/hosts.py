"""Which brokers to connect to: host lists and SRV names of choria.cfg (wire-protocol 1.1)."""

from urllib.parse import urlsplit

MIDDLEWARE_SRV = ("_mcollective-server._tcp", "_x-puppet-mcollective._tcp")
"""SRV names of brokers, before the domain; the first that resolves is used."""
FEDERATION_SRV = ("_mcollective-federation_server._tcp", "_x-puppet-mcollective_federation._tcp")
FALLBACK = "nats://puppet:4222"
"""Where Choria clients connect when nothing says where."""


def broker_url(text: str) -> str:
    """The URL of one entry of a host list.

    Args:
        text: ``host:port`` or a URL with both; user and password in it are dropped, as Choria does.

    Returns:
        such as ``nats://broker.example.net:4222``.

    Raises:
        ValueError: no host, or no port; says so without quoting a password.
    """
    text = text.strip()
    try:
        url = urlsplit(text if "://" in text else f"nats://{text}")
        host, port = url.hostname, url.port
    except ValueError:
        host, port = None, None
    if not host or not port:
        raise ValueError("a host and a port are wanted, such as broker.example.net:4222")
    if ":" in host:
        host = f"[{host}]"
    return f"{url.scheme}://{host}:{port}"
