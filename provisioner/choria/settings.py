"""choria.cfg: its syntax, its load order and the keys a client needs, typed (wire-protocol 11).

Nothing here reads a file or a name service. ``load_order`` says which files count, the caller reads those that exist,
and ``read_settings`` makes a ``ChoriaSettings`` of their texts.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import Any

from attrs import Attribute, evolve, field, fields, frozen

from provisioner.choria import v1
from provisioner.choria.hosts import broker_url
from provisioner.choria.ids import identity_problem
from provisioner.choria.wire import MAX_TTL
from provisioner.durations import parse_duration
from provisioner.errors import ConfigError, Fault
from provisioner.printable import escaped
from provisioner.secret import Secret

PROVIDERS = ("puppet", "file", "choria")
"""Security providers we speak for. ``pkcs11`` and ``certmanager`` keep their keys where we can't get at them."""
NO_SECRET = Secret("")
MAX_CONNECT_TIMEOUT = 120.0
"""Seconds (1.2)."""
MAX_LINE = 64 * 1024
"""Characters; the reference stops reading a file at a longer line (11.3)."""

_WHOLE = re.compile(r"-?[0-9]{1,9}")
_FORBIDDEN_WITH_CHORIA = (
    "plugin.choria.security.server.token_file",
    "plugin.choria.security.server.seed_file",
    "plugin.security.server_anon_tls",
    "plugin.security.client_anon_tls",
    "plugin.choria.security.request_signer.seed_file",
    "plugin.choria.security.request_signer.token_file",
)
_ENVIRONMENT = {
    "plugin.choria.srv_domain": "CHORIA_SRV_DOMAIN",
    "plugin.choria.federation.collectives": "CHORIA_FED_COLLECTIVE",
    "plugin.nats.user": "MCOLLECTIVE_NATS_USERNAME",
    "plugin.nats.pass": "MCOLLECTIVE_NATS_PASSWORD",
    "plugin.nats.credentials": "MCOLLECTIVE_NATS_CREDENTIALS",
}
_ALWAYS_OVERRIDDEN = ("plugin.choria.srv_domain", "plugin.choria.federation.collectives")
"""The others' environment counts only where the key stands in a file (11.3)."""


def _text(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:  # the file's odd bytes stand for themselves in a path, and nowhere else
        raise ValueError("text in UTF-8 is wanted") from None
    return value


def _identity(value: str) -> str:
    if problem := identity_problem(value):
        raise ValueError(f"it can't be a name: {problem}")
    return value


def _path(value: str) -> str:
    return value


def _secret(value: str) -> Secret:
    return Secret(_text(value))


def _boolean(value: str) -> bool:
    return value.lower() in {"1", "yes", "true", "y", "t"}


def _integer(value: str) -> int:
    if not _WHOLE.fullmatch(value):
        raise ValueError("a whole number of at most nine digits is wanted")
    return int(value)


def _duration(value: str) -> float:
    return parse_duration(f"{value}s" if value.isdecimal() else value)


def _connect_timeout(value: str) -> float:
    seconds = _duration(value)
    if not 0 < seconds <= MAX_CONNECT_TIMEOUT:
        raise ValueError(f"more than 0s and at most {MAX_CONNECT_TIMEOUT:.0f}s are wanted")
    return seconds


def _list(value: str) -> tuple[str, ...]:
    return tuple(part for part in map(str.strip, value.split(",")) if part)


def _hosts(value: str) -> tuple[str, ...]:
    return tuple(map(broker_url, _list(value)))


def _provider(value: str) -> str:
    if value not in PROVIDERS:
        raise ValueError(f"one of {', '.join(PROVIDERS)} is wanted")
    return value


def _seconds(value: str) -> int:
    if not 0 < (seconds := _integer(value)) <= MAX_TTL:
        raise ValueError(f"more than 0 and at most {MAX_TTL} seconds are wanted")
    return seconds


def _key(name: str, convert: Any, default: Any) -> Any:
    return field(default=default, metadata={"key": name, "convert": convert})


@frozen(kw_only=True)
class ChoriaSettings:
    """What a client needs of choria.cfg. Times are seconds, hosts are URLs, paths are texts with ``~`` resolved.

    Attributes:
        identity: as configured; else what the caller derived from the host's name.

    Keys that aren't here are no mistake: the file is shared with Choria's other programs.
    """

    identity: str = _key("identity", _identity, "")
    ttl: int = _key("ttl", _seconds, 60)
    discovery_timeout: int = _key("discovery_timeout", _seconds, 2)
    middleware_hosts: tuple[str, ...] = _key("plugin.choria.middleware_hosts", _hosts, ())
    use_srv: bool = _key("plugin.choria.use_srv", _boolean, True)
    srv_domain: str = _key("plugin.choria.srv_domain", _text, "")
    federation_collectives: tuple[str, ...] = _key("plugin.choria.federation.collectives", _list, ())
    federation_middleware_hosts: tuple[str, ...] = _key("plugin.choria.federation_middleware_hosts", _hosts, ())
    connect_timeout: float = _key("plugin.choria.network.connect_timeout", _connect_timeout, 2.0)
    require_client_filter: bool = _key("plugin.choria.require_client_filter", _boolean, False)
    nats_user: str = _key("plugin.nats.user", _text, "")
    nats_pass: Secret = _key("plugin.nats.pass", _secret, NO_SECRET)  # noqa: RUF009 - immutable
    nats_credentials: str = _key("plugin.nats.credentials", _path, "")
    security_provider: str = _key("plugin.security.provider", _provider, "puppet")
    file_certificate: str = _key("plugin.security.file.certificate", _path, "")
    file_key: str = _key("plugin.security.file.key", _path, "")
    file_ca: str = _key("plugin.security.file.ca", _path, "")
    ssldir: str = _key("plugin.choria.ssldir", _path, "")
    support_legacy_certificates: bool = _key("plugin.security.support_legacy_certificates", _boolean, False)
    choria_token_file: str = _key("plugin.security.choria.token_file", _path, "")
    choria_seed_file: str = _key("plugin.security.choria.seed_file", _path, "")
    choria_certificate: str = _key("plugin.security.choria.certificate", _path, "")
    choria_key: str = _key("plugin.security.choria.key", _path, "")
    choria_ca: str = _key("plugin.security.choria.ca", _path, "")
    cipher_suites: tuple[str, ...] = _key("plugin.security.cipher_suites", _list, ())
    ecc_curves: tuple[str, ...] = _key("plugin.security.ecc_curves", _list, ())

    @property
    def version(self) -> int:
        """The protocol version that goes with the security provider: 2 for ``choria``, else 1 (3.0)."""
        return 2 if self.security_provider == "choria" else 1

    @property
    def legacy_certificates(self) -> bool:
        """Whether a broker's certificate may have its name in the subject only (1.4.2)."""
        return self.support_legacy_certificates or self.security_provider == "puppet"

    @property
    def federated(self) -> bool:
        """Whether the brokers are those of a federation."""
        return bool(self.federation_collectives)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The configured brokers' URLs; empty when SRV records or the fallback are to be asked (1.1)."""
        return self.federation_middleware_hosts if self.federated else self.middleware_hosts

    def key_files(self, certname: str) -> tuple[tuple[str, str], ...]:
        """The files of our credential (3.5), in this order: certificate or token, key or seed, and for x509 the CA.

        Args:
            certname: see ``security.certname``; ``puppet`` names its files after it.

        Returns:
            for each the settings key that leads to it and its path; ``""`` for one that must still be configured.
        """
        if self.security_provider == "choria":
            seed = self.choria_seed_file
            if not seed and self.choria_token_file:
                seed = str(PurePath(self.choria_token_file).with_suffix(".key"))
            return (
                ("plugin.security.choria.token_file", self.choria_token_file),
                ("plugin.security.choria.seed_file", seed),
            )
        if self.security_provider == "puppet":
            names = (f"certs/{certname}.pem", f"private_keys/{certname}.pem", "certs/ca.pem")
            return tuple(("plugin.choria.ssldir", f"{self.ssldir}/{name}" if self.ssldir else "") for name in names)
        return (
            ("plugin.security.file.certificate", self.file_certificate),
            ("plugin.security.file.key", self.file_key),
            ("plugin.security.file.ca", self.file_ca),
        )


def known_keys() -> dict[str, str]:
    """Each key of choria.cfg that is read here, with the attribute of ``ChoriaSettings`` that holds it."""
    return {attribute.metadata["key"]: attribute.name for attribute in _typed()}


def _typed() -> Iterator["Attribute[Any]"]:
    return (attribute for attribute in fields(ChoriaSettings) if "key" in attribute.metadata)


def parse(text: str) -> Iterator[tuple[str, str]]:
    """Keys and values of one file, in order (11.3). Lines that say nothing are skipped, and all after a huge one."""
    for line in text.split("\n"):
        if len(line) > MAX_LINE:
            return
        line = line.strip()  # noqa: PLW2901 - the line as it counts
        key, equals, value = line.partition("=")
        key, value = key.rstrip(), value.lstrip()
        if equals and key and value and not line.startswith("#"):
            yield key, value


def default_locations(home: str) -> tuple[PurePath, ...]:
    """Where choria.cfg is looked for when no flag says where; the last is used even if it isn't there (11.1)."""
    found = [PurePath(home) / ".choriarc", PurePath(home) / ".mcollective"] if home else []
    system = ("/etc/choria/client.conf", "/usr/local/etc/choria/client.conf", "/etc/puppetlabs/mcollective/client.cfg")
    return (*found, *map(PurePath, system))


def load_order(main: PurePath, *, home: str, working_directory: PurePath) -> list[PurePath]:
    """The files that make up the configuration, later ones overriding earlier ones (11.2).

    Args:
        main: the given file, absolute.
        home: environment ``HOME``, or ``""``.
        working_directory: absolute.

    Returns:
        paths; those after the first need not exist. Of ``plugin.d`` only ``choria.cfg`` bears on what is read here.
    """
    order = [main]
    if not (home and str(main).startswith(home)):
        order.append(main.parent / "plugin.d" / "choria.cfg")
    directories = [*reversed(working_directory.parents), working_directory]
    return order + [directory / "choria.conf" for directory in directories]


def read_settings(
    files: Iterable[tuple[PurePath, str]], *, environ: Mapping[str, str], default_identity: str
) -> ChoriaSettings:
    """The settings that these files make.

    Args:
        files: path and text of each file there is, in ``load_order``.
        environ: the environment, for ``HOME`` and the five overrides of 11.3.
        default_identity: this host's name, used where no file sets ``identity``.

    Raises:
        ConfigError: a value that can't be what its key wants, or a key that must not stand beside another. Every
            fault, each with its file. The reference ignores bad values in silence.
    """
    typed: dict[str, tuple[str, PurePath]] = {}
    for path, text in files:
        prefix = f"plugin.{path.stem}." if path.parent.name == "plugin.d" else ""
        typed.update((prefix + key, (value, path)) for key, value in parse(text))
    for key, variable in _ENVIRONMENT.items():
        if environ.get(variable) and (key in typed or key in _ALWAYS_OVERRIDDEN):
            typed[key] = environ[variable], PurePath(f"${variable}")
    faults: list[Fault] = []
    values: dict[str, Any] = {}
    for attribute in _typed():
        if found := typed.get(attribute.metadata["key"]):
            value, path = found
            if attribute.metadata["convert"] is _path and value.startswith("~"):
                value = environ.get("HOME", "") + value[1:]
            try:
                values[attribute.name] = attribute.metadata["convert"](value)
            except ValueError as error:
                faults.append(Fault(str(path), attribute.metadata["key"], str(error), _shown(attribute, value)))
    settings = ChoriaSettings(**values)
    if settings.version == 1 and settings.ttl < v1.SHORTEST_TTL and "ttl" in typed:
        problem = f"servers of protocol version 1 drop requests of less than {v1.SHORTEST_TTL} seconds"
        faults.append(Fault(str(typed["ttl"][1]), "ttl", problem, typed["ttl"][0]))
    if settings.security_provider == "choria":
        faults += [
            Fault(str(typed[key][1]), key, "must not be set beside plugin.security.provider = choria")
            for key in _FORBIDDEN_WITH_CHORIA
            if key in typed
        ]
    if faults:
        raise ConfigError(faults)
    return settings if settings.identity else evolve(settings, identity=default_identity)


def _shown(attribute: "Attribute[Any]", value: str) -> str | None:
    # A host list may hold a password that Choria drops.
    return None if attribute.metadata["convert"] in {_secret, _hosts} else escaped(value, 100)
