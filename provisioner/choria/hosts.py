"""Which brokers to connect to: host lists and SRV names of choria.cfg (wire-protocol 1.1)."""

import re

MIDDLEWARE_SRV = ("_mcollective-server._tcp", "_x-puppet-mcollective._tcp")
"""SRV names of brokers, before the domain; the first that resolves is used."""
FEDERATION_SRV = ("_mcollective-federation_server._tcp", "_x-puppet-mcollective_federation._tcp")
FALLBACK = "nats://puppet:4222"
"""Where Choria clients connect when nothing says where."""

_ENTRY = re.compile(
    r"(?:(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://)?(?:[^@/\s]*@)?"
    r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(?P<port>[0-9]{1,5})(?:/\S*)?"
)


def broker_url(text: str) -> str:
    """The URL of one entry of a host list.

    Args:
        text: ``host:port`` or a URL with both; user and password in it are dropped, as Choria does.

    Returns:
        such as ``nats://broker.example.net:4222``.

    Raises:
        ValueError: no host, or no port; says so without quoting a password.
    """
    found = _ENTRY.fullmatch(text.strip())
    if not found or not 0 < int(found["port"]) < 1 << 16:
        raise ValueError("a host and a port are wanted, such as broker.example.net:4222")
    return f"{found['scheme'] or 'nats'}://{found['host']}:{found['port']}"
