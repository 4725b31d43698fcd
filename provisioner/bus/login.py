"""How a client connects to NATS servers or Choria brokers, and what it shows of itself."""

import random
import ssl
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from attrs import field, frozen

from provisioner.secret import Secret

_nothing = partial(Secret, "")


@frozen(kw_only=True)
class Credentials:
    """One connection's credentials; any combination, as a Choria broker may want user, password and token at once.

    Attributes:
        user: sent with ``password``.
        token: the ``auth_token`` of CONNECT: a plain token, or the JWT that a Choria broker reads.
        jwt: the ``jwt`` of CONNECT; goes with ``sign``.
        sign: signs the server's nonce (the bytes of its text, not decoded) with Ed25519; gives 64 raw bytes.
        creds_file: a NATS credentials file (JWT and NKey seed); excludes ``jwt`` and ``sign``.
    """

    user: str = ""
    password: Secret = field(factory=_nothing)
    token: Secret = field(factory=_nothing)
    jwt: Secret = field(factory=_nothing)
    sign: Callable[[bytes], bytes] | None = None
    creds_file: Path | None = None


Resolve = Callable[[], Awaitable[Sequence[str]]]


def steady_delays() -> Iterator[float]:
    """Seconds between attempts, for those who have no table of their own: half a second doubling to 5, spread."""
    nominal = 0.5
    while True:
        yield nominal * random.uniform(0.5, 1.5)  # noqa: S311 - jitter
        nominal = min(nominal * 2, 5.0)


@frozen(kw_only=True)
class Options:
    """How to connect; the defaults are those of a Choria client (wire-protocol 1.2).

    Attributes:
        name: what the server shows for this connection.
        credentials: asked before each attempt; may raise a ``ProvisionerError`` (a file that can't be read).
        tls: asked before each attempt; the server must then offer TLS. None: TLS only if the server demands it.
        inbox_prefix: what our reply subjects begin with.
        connect_timeout: seconds for each step of one attempt.
        ping_interval: seconds; a server that leaves two pings unanswered is given up.
        delays: gives the seconds between attempts, anew for each outage; the last one is kept.
        explain: turns the reason of a failed attempt into a text for the operator.
    """

    name: str = "provisioner"
    credentials: Callable[[], Credentials] = Credentials
    tls: Callable[[], ssl.SSLContext] | None = None
    inbox_prefix: str = "_INBOX"
    connect_timeout: float = 2.0
    ping_interval: float = 30.0
    delays: Callable[[], Iterator[float]] = steady_delays
    explain: Callable[[str], str] = str


def public_url(url: str) -> str:
    """A server's URL without the user and password that may stand in it."""
    parts = urlsplit(url if "://" in url else f"nats://{url}")
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
