"""Which brokers to connect to: configured hosts, SRV records, or Choria's fallback (wire-protocol 1.1)."""

import logging
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Sequence

import trio
from dns.asyncresolver import Resolver
from dns.exception import DNSException
from dns.rdtypes.IN.SRV import SRV

from provisioner.bus.login import Resolve
from provisioner.choria.hosts import FALLBACK, FEDERATION_SRV, MIDDLEWARE_SRV
from provisioner.choria.settings import ChoriaSettings

log = logging.getLogger(__name__)

LOOKUP_TIMEOUT = 5.0
"""Seconds for one SRV lookup, all name servers together."""
FACTER_TIMEOUT = 10.0
"""Seconds for ``facter``, which starts a Ruby."""
MAX_SERVERS = 100
"""Servers taken of one answer of the name service."""

Lookup = Callable[[str], Awaitable[Sequence[str]]]
"""The servers of one SRV name, as ``host:port``; raises OSError when the lookup fails."""


def resolver(
    settings: ChoriaSettings, *, lookup: Lookup | None = None, domain: Callable[[], Awaitable[str]] | None = None
) -> Resolve:
    """What ``open_nats`` asks before each round of attempts; nothing is remembered from one to the next.

    Args:
        settings: choria.cfg.
        lookup: asks the name service.
        domain: this host's domain where none is configured; ``""`` if it isn't known.
    """
    ask, find_domain = lookup or lookup_srv, domain or facter_domain

    async def resolve() -> Sequence[str]:
        if settings.hosts:
            return settings.hosts
        if settings.use_srv and (found := await _by_records(settings, ask, find_domain)):
            return [f"nats://{server}" for server in found]
        return [FALLBACK]

    return resolve


async def _by_records(settings: ChoriaSettings, lookup: Lookup, domain: Callable[[], Awaitable[str]]) -> Sequence[str]:
    where = settings.srv_domain or await domain()
    if not where:
        log.warning("No SRV records are asked for: plugin.choria.srv_domain is not set, and facter knows no domain")
        return ()
    for name in FEDERATION_SRV if settings.federated else MIDDLEWARE_SRV:
        try:
            return await lookup(f"{name}.{where}")  # what it answers counts; a later name is only asked if it fails
        except OSError as error:
            log.warning("No servers by the SRV records of %s.%s: %s", name, where, error)
    return ()


async def lookup_srv(name: str, resolver: Resolver | None = None) -> Sequence[str]:
    """Asks the name service for the servers of one SRV name.

    Args:
        name: such as ``_mcollective-server._tcp.example.net``.
        resolver: which name servers to ask; the system's by default.

    Returns:
        ``host:port`` by priority, at most ``MAX_SERVERS``.

    Raises:
        OSError: no such name, no answer, or no usable one.
    """
    try:
        if resolver is None:
            resolver = Resolver()
            resolver.lifetime = LOOKUP_TIMEOUT
        # An absolute name: search domains are not for SRV records.
        answer = await resolver.resolve(f"{name}.", "SRV")
    except DNSException as error:
        raise OSError(str(error) or type(error).__name__) from None
    records = sorted((record for record in answer if isinstance(record, SRV)), key=lambda record: record.priority)
    found = [(str(record.target).rstrip("."), record.port) for record in records]
    return [f"{host}:{port}" for host, port in found[:MAX_SERVERS] if host and port]


async def facter_domain() -> str:
    """This host's domain as Puppet's ``facter`` tells it, or ``""``: Choria asks it, so it finds the same servers."""
    program = shutil.which("facter")
    if program is None:
        return ""
    with trio.move_on_after(FACTER_TIMEOUT):
        done = await trio.run_process(
            [program, "networking.domain"], capture_stdout=True, stderr=subprocess.DEVNULL, check=False
        )
        return done.stdout.decode(errors="replace").strip()[:253]
    return ""
