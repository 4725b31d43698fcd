"""How we log in to a Choria broker, checked where we can see it, and what its refusal may mean (wire-protocol 1.4-1.7).

A broker refuses everything with the same two words. So what would surely be refused is told before connecting, with
its own message, and a refusal lists what was sent and what is most likely wrong. All files are read anew for each
attempt: a renewed token or certificate is taken up without a restart.
"""

import base64
import hashlib
import itertools
import logging
import os
import random
import re
import ssl
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from attrs import define, evolve, field, frozen

from provisioner.bus.login import Credentials, Options
from provisioner.choria.backoff import FIVE_SEC
from provisioner.choria.security import caller_of_token, parse_seed, sign_nonce
from provisioner.choria.settings import ChoriaSettings
from provisioner.config import Config
from provisioner.connect import own_certname, read_credential
from provisioner.errors import ConfigError, Fault, TrustError
from provisioner.secret import Secret
from provisioner.trust.broker_login import check_client_token, check_own_certificate

log = logging.getLogger(__name__)

USER = "provisioner"
"""The user that a broker puts into the provisioning account (1.7)."""
COLLECTIVE = "provisioning"
PING_INTERVAL = 30.0


def delays() -> Iterator[float]:
    """Seconds between attempts: Choria's table for a first connection, which ends at 5 s (wire-protocol 12)."""
    for tries in itertools.count(1):
        yield FIVE_SEC.pause(tries, random.random())  # noqa: S311 - jitter


@define
class _Shown:
    """What the last attempt showed of us, and what looks wrong with it; for an operator, without any secret."""

    sent: list[str] = field(factory=list)
    doubts: list[str] = field(factory=list)


class BrokerLogin:
    """One provisioner's login.

    Args:
        config: the provisioner's YAML.
        settings: choria.cfg.
        environ: the environment; ``USER`` need not be set.
        now: gives Unix time in seconds.
    """

    def __init__(
        self,
        config: Config,
        settings: ChoriaSettings,
        *,
        environ: Mapping[str, str] = os.environ,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._insecure = config.choria_insecure
        self._with_token = settings.version == 2 and not config.choria_insecure
        self._name = own_certname(settings, insecure=config.choria_insecure, environ=environ)
        self._now = now
        self._user, self._password = settings.nats_user, settings.nats_pass
        if config.broker_provisioning_password:
            self._user, self._password = USER, config.broker_provisioning_password
        self._shown = _Shown()
        self._warned: set[str] = set()

    def options(self) -> Options:
        """How to connect, for ``open_nats``.

        Raises:
            ConfigError: there is a token, and it can't be read: without its caller id our inbox has no name.
        """
        return Options(
            name=self._name,
            credentials=self.credentials,
            tls=None if self._insecure else self.tls,
            inbox_prefix=self._inbox_prefix(),
            connect_timeout=self._settings.connect_timeout,
            ping_interval=PING_INTERVAL,
            delays=delays,
            explain=self.explain,
        )

    def _inbox_prefix(self) -> str:
        if not self._with_token:
            return f"{COLLECTIVE}.reply"
        key, path = self._settings.key_files(self._name)[0]
        try:
            caller = caller_of_token(read_credential(key, path))
        except ValueError as error:
            raise ConfigError([Fault("choria.cfg", key, str(error), path)]) from None
        return f"{COLLECTIVE}.reply.{hashlib.md5(caller.encode(), usedforsecurity=False).hexdigest()}"

    # --- for each attempt ------------------------------------------------------------------------------------------

    def credentials(self) -> Credentials:
        """What to show, read anew.

        Raises:
            ConfigError: a file can't be used, or a broker would surely refuse what is in it; names file and key.
        """
        shown = self._shown = _Shown()
        found = Credentials()
        if self._user and self._password:
            shown.sent.append(f"user {self._user} with a password (****)")
            found = evolve(found, user=self._user, password=self._password)
        if self._user != USER and not self._insecure:
            shown.doubts.append(
                "broker_provisioning_password is not set, and a Choria broker lets no provisioner in without it"
            )
        if self._with_token:
            found = self._with_signature(found)
        else:
            found = self._with_creds_file(found)
            if not self._insecure:
                self._check_certificate()
        for doubt in shown.doubts:
            self._warn_once(doubt)
        return found

    def _with_signature(self, found: Credentials) -> Credentials:
        (token_key, token_path), (seed_key, seed_path) = self._settings.key_files(self._name)
        token = read_credential(token_key, token_path).strip()
        with _named(token_key, token_path):
            facts = check_client_token(token, now=self._now())
        seed = self._read_private(seed_key, seed_path)
        with _named(seed_key, seed_path):
            parse_seed(seed)
        self._shown.sent += [str(facts), "a signature over the broker's nonce"]

        def sign(nonce: bytes) -> bytes:
            return base64.urlsafe_b64decode(sign_nonce(seed, nonce.decode()) + "==")

        return evolve(found, token=Secret(token), jwt=Secret(token), sign=sign)

    def _with_creds_file(self, found: Credentials) -> Credentials:
        path = self._settings.nats_credentials
        if not path:
            return found
        self._read_private("plugin.nats.credentials", path)
        self._shown.sent.append(f"the credentials file {path}")
        return evolve(found, creds_file=Path(path))

    def _check_certificate(self) -> None:
        files = self._tls_files()
        if not files.certificate:
            self._shown.doubts.append(
                "no client certificate is configured, and a broker with a certificate authority wants one"
            )
            return
        if files.key:
            self._read_private(*files.key)
        key, path = files.certificate
        authorities = read_credential(*files.authority) if files.authority else ""
        with _named(key, path):
            facts = check_own_certificate(read_credential(key, path), authorities, now=self._now())
        self._shown.sent.append(str(facts))
        if facts.issued_by_ours is False and files.authority:
            self._shown.doubts.append(
                f"{path} ({key}) was not issued by an authority in {files.authority[1]} ({files.authority[0]})"
            )

    def _read_private(self, key: str, path: str) -> Secret:
        text = Secret(read_credential(key, path))
        mode = stat.S_IMODE(Path(path).stat().st_mode)
        if mode & 0o007:
            self._shown.doubts.append(f"{path} ({key}) is open to everybody (mode {mode:04o}): make it 0600")
        return text

    # --- TLS -------------------------------------------------------------------------------------------------------

    def _tls_files(self) -> "_TLSFiles":
        settings = self._settings
        if settings.version == 2:
            certificate, key, authority = (
                ("plugin.security.choria.certificate", settings.choria_certificate),
                ("plugin.security.choria.key", settings.choria_key),
                ("plugin.security.choria.ca", settings.choria_ca),
            )
        else:
            certificate, key, authority = settings.key_files(self._name)
        pair = certificate if certificate[1] and key[1] else None
        return _TLSFiles(pair, key if pair else None, authority if authority[1] else None)

    def tls(self) -> ssl.SSLContext:
        """How to verify the broker and what to show it, read anew (1.4.1, 1.4.2).

        The broker is verified against the configured authority. Without one: with provider ``choria`` not at all, as
        Choria does, which is warned about; else against the system's authorities. Other than in Choria, a configured
        file that isn't there is an error, not a reason to verify nothing.

        Raises:
            ConfigError: a file can't be used; names file and key.
        """
        files = self._tls_files()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # Only certificates of Puppet's old kind have their name nowhere but in the subject.
        context.hostname_checks_common_name = self._settings.legacy_certificates
        if files.authority:
            key, path = files.authority
            with _named(key, path):
                context.load_verify_locations(cadata=read_credential(key, path))
        elif self._settings.version == 2:
            self._warn_once("plugin.security.choria.ca is not set, so the broker is not verified: anybody can play it")
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        else:
            context.load_default_certs()
        if files.certificate and files.key:
            key, path = files.certificate
            read_credential(key, path)
            with _named(f"{key}, {files.key[0]}", path):
                context.load_cert_chain(path, files.key[1], password=_no_password)
        if self._settings.cipher_suites:
            with _named("plugin.security.cipher_suites", ""):
                context.set_ciphers(":".join(map(openssl_name, self._settings.cipher_suites)))
        if self._settings.ecc_curves:
            self._warn_once("plugin.security.ecc_curves is not used here: TLS takes its library's curves")
        return context

    def _warn_once(self, doubt: str) -> None:
        if doubt not in self._warned:
            self._warned.add(doubt)
            log.warning("About the login to the broker: %s", doubt)

    # --- what a refusal means --------------------------------------------------------------------------------------

    def explain(self, reason: str) -> str:
        """A failed attempt in words of use to an operator.

        Args:
            reason: what the client library or the broker said.
        """
        low = reason.lower()
        if "certificate is not accepted" in low:
            files = self._tls_files()
            by = f"{files.authority[1]} ({files.authority[0]})" if files.authority else "the system's authorities"
            return f"{reason}; it was verified against {by}"
        if "does not offer tls" in low:
            return f"{reason}; choria_insecure: true is for brokers without TLS"
        if "certificate required" in low or "bad certificate" in low or "unknown ca" in low:
            return f"{reason}: {self._told()}"
        if "authorization violation" not in low and "authentication" not in low:
            return reason
        return f"{reason}; a broker never says why. {self._told()}"

    def _told(self) -> str:
        sent = ", ".join(self._shown.sent) or "nothing"
        causes = list(self._shown.doubts)
        if self._user == USER:
            causes.append("the password is not the broker's plugin.choria.network.provisioning.client_password")
            causes.append("the broker has no such password, and so no provisioning account")
        if self._with_token:
            causes.append("the broker does not know the token's issuer (its plugin.security.issuer.names)")
        elif not self._insecure:
            causes.append("the broker's authority did not issue the certificate (its plugin.security.file.ca)")
        return f"Sent: {sent}. Likely: {'; '.join(causes)}"


@frozen
class _TLSFiles:
    """Settings key and path of each file that TLS uses, where there is one."""

    certificate: tuple[str, str] | None
    key: tuple[str, str] | None
    authority: tuple[str, str] | None


_SUITE = re.compile(r"TLS_(ECDHE_(?:RSA|ECDSA)|RSA)_WITH_(AES_(?:128|256)_(?:GCM|CBC)|CHACHA20_POLY1305)_(SHA\d*)")


def openssl_name(suite: str) -> str:
    """The name that OpenSSL gives one of Go's cipher suites.

    Raises:
        ValueError: not a suite that we know.
    """
    found = _SUITE.fullmatch(suite)
    if not found:
        raise ValueError(f"unknown cipher suite {suite[:80]!a}; suites of TLS 1.3 can't be chosen")
    exchange, cipher, digest = found.groups()
    parts = [] if exchange == "RSA" else [exchange.replace("_", "-")]
    if cipher == "CHACHA20_POLY1305":
        return "-".join([*parts, "CHACHA20-POLY1305"])
    kind, bits, mode = cipher.split("_")
    return "-".join([*parts, f"{kind}{bits}", *([mode] if mode == "GCM" else []), digest])


def _no_password() -> str:
    raise ValueError("the private key is encrypted; it must be in the clear")


@contextmanager
def _named(key: str, path: str) -> Iterator[None]:
    """Tells the file and key of whatever is wrong with it."""
    try:
        yield
    except ssl.SSLError as error:
        problem = "does not belong to its key" if error.reason == "KEY_VALUES_MISMATCH" else "can't be used by TLS"
        raise ConfigError([Fault("choria.cfg", key, f"{problem}: {error.reason or error}", path)]) from None
    except (TrustError, ValueError) as error:
        raise ConfigError([Fault("choria.cfg", key, str(error), path or None)]) from None
