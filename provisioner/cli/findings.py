"""What ``check`` looks at, each look a list of findings. Nothing here changes anything, here or elsewhere."""

import os
import stat
import time
from collections.abc import Callable, Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Literal
from urllib.request import ProxyHandler, build_opener

import trio
from attrs import frozen
from prometheus_client import CollectorRegistry

from provisioner.bus.interface import Bus
from provisioner.choria.settings import ChoriaSettings
from provisioner.cli.choria_files import load_choria_settings
from provisioner.cli.connection import WAIT, connected
from provisioner.cli.try_helper import judge_all
from provisioner.config import Config, load_config
from provisioner.connect import own_certname, wire_for
from provisioner.cycle.outcome import KINDS
from provisioner.errors import (
    BadReply,
    BusError,
    ConfigError,
    Fault,
    NoResponders,
    PermissionDenied,
    ProvisionerError,
    TrustError,
)
from provisioner.helper.process import LIMIT
from provisioner.leader import election
from provisioner.metrics import Metrics
from provisioner.notice.lifecycle import listening
from provisioner.printable import escaped
from provisioner.rpc import open_caller
from provisioner.simulator.samples import make_samples
from provisioner.trust.broker_login import check_client_token, check_own_certificate
from provisioner.trust.inspection import certificate_facts, day
from provisioner.trust.keys import load_verification_key, read_file
from provisioner.trust.server_token import load_server_token_issuer

SOON = 14 * 86400.0
"""Seconds before an expiry from which on it is warned about."""

Level = Literal["ok", "warn", "fail"]


@frozen
class Finding:
    """One line of ``check``: what was looked at, what was found, and what to do about it (``""``: nothing)."""

    level: Level
    subject: str
    text: str
    do: str = ""


def from_fault(fault: Fault, subject: str) -> Finding:
    """A fault of a file, with what to do about it."""
    where = f"{fault.key} in {fault.file}" if fault.key else fault.file
    if "is missing" in fault.problem:
        do = f"add {where}"
    elif "no such" in fault.problem.lower():
        do = f"correct {where}, or put there what it names" if fault.key else f"make {fault.file}, or correct its name"
    elif "can't be read" in fault.problem and "YAML" not in fault.problem:
        do = f"make it readable for the user that the daemon runs as, or correct {where}"
    else:
        do = f"correct {where}"
    return Finding("fail", subject, str(fault), do)


def _faults(error: ProvisionerError, subject: str) -> list[Finding]:
    if isinstance(error, ConfigError):
        return [from_fault(fault, subject) for fault in error.faults]
    return [Finding("fail", subject, str(error), "correct the file that it names")]


# --- the operator's files -------------------------------------------------------------------------------------------


def configuration(path: Path) -> tuple[list[Finding], Config | None]:
    """The provisioner's YAML."""
    subject = "configuration"
    try:
        config = load_config(path)
    except ConfigError as error:
        return _faults(error, subject), None
    found = [Finding("ok", subject, f"{path} can be used")]
    found += [
        Finding("warn", subject, str(warning), "remove the key, or correct its name") for warning in config.warnings
    ]
    if config.choria_insecure:
        text = f"{path}: choria_insecure: no TLS and no signatures"
        found.append(Finding("warn", subject, text, "leave it on in a laboratory only"))
    found += _modes(path, "the provisioning token", subject)
    found += _modes(Path(config.helper[0]), "", "helper") if "/" in config.helper[0] else []
    found += list(_places(config))
    return found, config


def _modes(path: Path, secret: str, subject: str) -> list[Finding]:
    """Whether strangers on this machine may read a secret, or change what the daemon does."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return []  # told where the file is read
    shown = f"{path} has mode {stat.S_IMODE(mode):04o}"
    found = []
    if mode & stat.S_IWOTH:
        found.append(Finding("fail", subject, f"{shown}: anybody may change it", f"chmod o-w {path}"))
    if secret and mode & stat.S_IROTH:
        found.append(Finding("warn", subject, f"{shown}: anybody may read {secret}", f"chmod o= {path}"))
    return found


def _places(config: Config) -> Iterator[Finding]:
    """Directories and files that will be written."""
    logfile = "" if config.logfile in {"stdout", "stderr", "discard"} else config.logfile
    for key, path in (("logfile", logfile), ("audit_log", config.audit_log), ("record_inputs", config.record_inputs)):
        if not path:
            continue
        place = Path(path)
        target = place if place.exists() else place.parent
        if os.access(target, os.W_OK):
            yield Finding("ok", key, f"{place} can be written")
        else:
            yield Finding(
                "fail", key, f"{target} can't be written by us", f"make {target} writable for the daemon's user"
            )


def choria(path: Path | None) -> tuple[list[Finding], ChoriaSettings | None]:
    """choria.cfg and what overrides it."""
    try:
        settings = load_choria_settings(path)
    except ConfigError as error:
        return _faults(error, "choria.cfg"), None
    text = f"identity {settings.identity}, security provider {settings.security_provider}"
    found = [Finding("ok", "choria.cfg", text)]
    if path is not None and settings.nats_pass:
        found += _modes(path, "plugin.nats.pass", "choria.cfg")
    return found, settings


# --- keys and tokens ------------------------------------------------------------------------------------------------


def credentials(config: Config, settings: ChoriaSettings, *, now: float) -> list[Finding]:
    """What we show of ourselves to the broker and the servers."""
    subject = "credential"
    try:
        wire = wire_for(config, settings)
    except ConfigError as error:
        return _faults(error, subject)
    found = [Finding("ok", subject, f"protocol version {wire.version}, caller {wire.caller}")]
    if config.choria_insecure:
        return found
    (public_key, public), (_, private), *rest = settings.key_files(own_certname(settings, insecure=False))
    found += _modes(Path(private), "our private key", subject)
    if settings.version == 2:
        found += _token(public_key, Path(public), now)
        authorities = [("plugin.security.choria.ca", settings.choria_ca)] if settings.choria_ca else []
    else:
        found += _certificate(public_key, Path(public), now)
        authorities = list(rest)
        found += _issued(public_key, Path(public), rest[0][1], now) if rest and rest[0][1] else []
    for key, file in authorities:
        found += _certificate(key, Path(file), now)
    return found


def _expiry(subject: str, what: str, until: float, now: float, do: str) -> Finding:
    if until <= now:
        return Finding("fail", subject, f"{what} expired on {day(until)}; it is {day(now)} here", do)
    if until - now < SOON:
        return Finding("warn", subject, f"{what} expires on {day(until)}, in {(until - now) / 86400:.0f} days", do)
    return Finding("ok", subject, f"{what} is valid until {day(until)}")


def _certificate(key: str, path: Path, now: float) -> list[Finding]:
    try:
        facts = certificate_facts(read_file(path, key))
    except ConfigError as error:
        return _faults(error, "credential")
    except ValueError as error:
        return [from_fault(Fault(str(path), key, str(error)), "credential")]
    if facts.not_before > now:
        text = f"{path} ({key}) is not valid before {day(facts.not_before)}; it is {day(now)} here"
        return [Finding("fail", "credential", text, "check this machine's clock")]
    return [_expiry("credential", f"{path} ({key})", facts.not_after, now, f"issue a new certificate, to {path}")]


def _issued(key: str, path: Path, authority: str, now: float) -> list[Finding]:
    """Whether our certificate leads to the authority that stands beside it."""
    try:
        facts = check_own_certificate(read_file(path, key), read_file(Path(authority), "ca"), now=now)
    except (ConfigError, TrustError):
        return []  # told where each of the two is looked at
    if facts.issued_by_ours:
        return []
    text = f"{path} ({key}) was not issued by the authority in {authority}"
    return [Finding("warn", "credential", text, "correct the one or the other, unless the broker knows another one")]


def _token(key: str, path: Path, now: float) -> list[Finding]:
    subject, do = "credential", f"issue a new client token with the provisioner permission, to {path}"
    try:
        facts = check_client_token(read_file(path, key), now=now)
    except TrustError as error:
        return [Finding("fail", subject, f"{path} ({key}): {error}", do)]
    except ConfigError as error:
        return _faults(error, subject)
    return [_expiry(subject, f"{path} ({key})", facts.expires, now, do)]


def trust(config: Config, *, now: float) -> list[Finding]:
    """What servers' tokens are verified with and signed with."""
    found: list[Finding] = []
    if config.features.jwt:
        found += _tried("jwt_verify_cert", lambda: _verifier(config))
    if config.features.ed25519:
        found += _tried("jwt_signing_key", lambda: _signer(config, now))
    return found


def _tried(subject: str, look: Callable[[], list[Finding]]) -> list[Finding]:
    try:
        return look()
    except (ConfigError, TrustError) as error:
        return _faults(error, subject)


def _verifier(config: Config) -> list[Finding]:
    key = load_verification_key(config.jwt_verify_cert)
    return [Finding("ok", "jwt_verify_cert", f"a key of kind {key.kind}: believes {', '.join(key.algorithms)}")]


def _signer(config: Config, now: float) -> list[Finding]:
    assert config.jwt_signing_key is not None
    issuer = load_server_token_issuer(
        config.jwt_signing_key, config.jwt_signing_token, config.server_jwt_validity, now=now
    )
    found = [Finding("ok", "jwt_signing_key", f"signs {issuer.key.algorithm}")]
    found += _modes(config.jwt_signing_key, "the key that signs servers' tokens", "jwt_signing_key")
    if issuer.chain is not None:
        until = float(issuer.chain.expires)
        found.append(
            _expiry("jwt_signing_token", str(config.jwt_signing_token), until, now, "have the issuer make a new one")
        )
        if until - now < config.server_jwt_validity:
            text = f"servers' tokens end with it, on {day(until)}, before their server_jwt_validity is over"
            found.append(Finding("warn", "jwt_signing_token", text, "have the issuer make one that is valid longer"))
    return found


# --- the helper, the page -------------------------------------------------------------------------------------------


async def helper(config: Config, *, now: float) -> list[Finding]:
    """One run of the site's helper on a sample."""
    verdicts = await judge_all(make_samples(1, config, now=now), config, 1)
    found = []
    for verdict in verdicts:
        text = f"answered a sample in {verdict.seconds:.2f} s: {verdict.word}"
        if verdict.complaints:
            complaint = verdict.complaints[0]
            do = f"{KINDS[complaint.word].cure} All of it: choria-provisioner helper --config {config.path}"
            found.append(Finding("fail", "helper", f"{complaint.word}: {escaped(complaint.text, 500)}", do))
        elif verdict.seconds > LIMIT / 2:
            found.append(Finding("warn", "helper", text, f"make it faster: at {LIMIT:g} s it is killed"))
        else:
            found.append(Finding("ok", "helper", text))
        found += [Finding("warn", "helper", note, "correct the key in the helper") for note in verdict.notes]
    return found


def page(config: Config) -> list[Finding]:
    """Whether ``monitor_port`` is free, or held by our own daemon."""
    port = config.monitor_port
    if not port:
        return [Finding("ok", "monitor_port", "not set: no metrics, and no status to ask for")]
    try:
        with build_opener(ProxyHandler({})).open(f"http://127.0.0.1:{port}/healthz", timeout=3) as answer:
            ours = answer.read(10) == b"ok\n"
    except ConnectionRefusedError:
        ours = None
    except (OSError, HTTPException) as error:
        ours = None if isinstance(getattr(error, "reason", None), ConnectionRefusedError) else False
    if ours is None:
        return [Finding("ok", "monitor_port", f"{port} is free")]
    if ours:
        return [Finding("ok", "monitor_port", f"a daemon answers on {port}")]
    text = f"{port} is held by another program"
    return [Finding("fail", "monitor_port", text, "stop it, or choose another port")]


# --- the broker -----------------------------------------------------------------------------------------------------


async def broker(config: Config, settings: ChoriaSettings, wait: float = WAIT) -> list[Finding]:
    """Whether it lets us in and gives us what we need. Asks who waits; sends nothing else."""
    found: list[Finding] = []
    try:
        async with connected(config, settings, wait) as bus:
            found.append(Finding("ok", "broker", f"connected to {bus.url}, the login is accepted"))
            found += await _permissions(bus, config, settings)
            if config.leader_election:
                found += await _bucket(bus, config)
    except* BusError as group:
        do = "is it running, is plugin.choria.middleware_hosts right, are our credentials those it knows?"
        found += [Finding("fail", "broker", str(error), do) for error in _leaves(group)]
    return found


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


async def _permissions(bus: Bus, config: Config, settings: ChoriaSettings) -> list[Finding]:
    metrics = Metrics(CollectorRegistry(), config.site)
    sender, seen = f"{settings.identity}.cli", set[str]()
    try:
        async with (
            open_caller(
                bus, wire_for(config, settings), sender=sender, ttl=settings.ttl, check=lambda: None, metrics=metrics
            ) as caller,
            listening(bus, config.lifecycle_component, lambda identity: None, metrics),
        ):
            await caller.discover(seen.add, now=time.time())
    except PermissionDenied as error:
        do = "log in to the provisioning account: broker_provisioning_password, and our token's provisioner permission"
        return [Finding("fail", "broker", f"the broker does not let us: {error}", do)]
    found = [
        Finding("ok", "broker", f"discovery and events are allowed; {len(seen)} servers answer in provisioning mode")
    ]
    if bus.last_error:
        do = "log in to the provisioning account: broker_provisioning_password, and our token's provisioner permission"
        found.append(Finding("fail", "broker", f"the broker complained: {bus.last_error}", do))
    return found


async def _bucket(bus: Bus, config: Config) -> list[Finding]:
    subject = "election"
    for api in (election.CHORIA_API, election.PLAIN_API):
        try:
            answer = await bus.request(election.info_subject(api), b"", timeout=5)
            bucket = election.read_bucket(api, answer.data)
        except (NoResponders, PermissionDenied):
            continue
        except (BusError, BadReply) as error:
            return [Finding("fail", subject, str(error), f"look at the bucket {election.BUCKET} on the broker")]
        if bucket is not None:
            return [Finding("ok", subject, f"bucket {election.BUCKET}, its entries expire after {bucket.ttl:g} s")]
    if config.create_bucket:
        return [Finding("ok", subject, f"there is no bucket {election.BUCKET} yet; the daemon makes it")]
    do = "wait: a Choria broker makes it within a minute of its start. On plain NATS set create_bucket: true"
    return [Finding("fail", subject, f"there is no bucket {election.BUCKET}", do)]


async def gather(
    config: Config, settings: ChoriaSettings | None, *, run_the_helper: bool, wait: float
) -> list[Finding]:
    """All that takes time, one after the other."""
    found = await trio.to_thread.run_sync(page, config)
    if run_the_helper:
        found += await helper(config, now=time.time())
    if settings is not None:
        found += await broker(config, settings, wait)
    return found
