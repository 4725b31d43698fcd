"""The provisioner's YAML as a frozen ``Config``, with every rule of validation (wire-protocol 11.6)."""

import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from attrs import field, frozen

from provisioner.command import check_command
from provisioner.config_keys import DEAD, DENY_LIST, KEYS
from provisioner.errors import ConfigError, Fault
from provisioner.keys import Reading, read_keys
from provisioner.printable import escaped
from provisioner.secret import Secret
from provisioner.strictyaml import MAX_CHARACTERS, NotYAML, load


@frozen
class Features:
    """Which steps a cycle has. ``ed25519`` implies ``jwt`` and excludes ``pki``."""

    jwt: bool = False
    pki: bool = False
    ed25519: bool = False
    upgrades: bool = False


@frozen(kw_only=True)
class Config:
    """One provisioner's configuration, validated. Field names are the YAML keys; durations are seconds.

    What each key means is told in ``KEYS``. ``warnings`` are the keys of the file that nothing reads.
    """

    path: Path
    workers: int
    interval: float
    interval_text: str
    helper: tuple[str, ...]
    token: Secret
    site: str = ""
    lifecycle_component: str = "provision_mode_server"
    logfile: str = ""
    loglevel: str = "info"
    choria_insecure: bool = False
    monitor_port: int = 0
    status_listen: str = "loopback"
    broker_provisioning_password: Secret = field(factory=partial(Secret, ""))
    cert_deny_list: tuple[str, ...] = DENY_LIST
    cert_allow_extensions: tuple[str, ...] = ()
    jwt_verify_cert: str = ""
    jwt_signing_key: Path | None = None
    jwt_signing_token: Path | None = None
    server_jwt_validity: float = 365 * 86400.0
    leader_election: bool = False
    create_bucket: bool = False
    sharing: bool = False
    upgrades_repository: str = ""
    upgrades_optional: bool = False
    helper_mode: str = "process"
    helper_processes: int = 0
    helper_input_extra: bool = False
    record_inputs: Path | None = None
    audit_log: Path | None = None
    features: Features = Features()
    warnings: tuple[Fault, ...] = field(default=(), eq=False)


# --- reading --------------------------------------------------------------------------------------------------------

FileCheck = Callable[[str, str], str]
"""Given what a key names (``program``, ``file``, ...) and the path, tells what is wrong with it, or ``""``."""


def load_config(path: Path) -> Config:
    """Reads and checks one configuration file whole.

    Raises:
        ConfigError: it can't be used; holds every fault of the file, each with its key and what is allowed.
    """
    try:
        with path.open("rb") as file:
            data = file.read(4 * MAX_CHARACTERS + 1)
        content = data.decode()
    except OSError as error:
        raise ConfigError([Fault(str(path), "", f"can't be read: {error.strerror}")]) from None
    except UnicodeDecodeError as error:
        raise ConfigError([Fault(str(path), "", f"is not UTF-8 at byte {error.start}")]) from None
    return parse_config(content, path, cpus=len(os.sched_getaffinity(0)), check_file=_file_problem)


def parse_config(
    content: str,
    path: Path,
    *,
    cpus: int = 1,
    check_file: FileCheck = lambda _kind, _path: "",
) -> Config:
    """Checks the text of a configuration file. Reads no file itself.

    Args:
        content: YAML.
        path: the file's name, for messages and for ``Config.path``.
        cpus: how many workers ``workers: 0`` means.
        check_file: looks at the files that keys name.

    Raises:
        ConfigError: every fault of the text.
    """
    try:
        tree = load(content)
    except NotYAML as error:
        raise ConfigError([Fault(str(path), "", f"can't be read as YAML: {error}")]) from None
    reading = read_keys(tree, KEYS, str(path), dead=DEAD)
    _check_files(reading, str(path), check_file)
    _check_rules(reading, str(path))
    if reading.faults:
        # A misspelt key is told along: it may be why another is missing.
        raise ConfigError(reading.faults, notes=reading.warnings)
    values = reading.values
    features = {name: values.pop(f"features.{name}") for name in ("jwt", "pki", "ed25519", "upgrades")}
    features["jwt"] |= features["ed25519"]
    values["workers"] = values["workers"] or cpus
    return Config(
        path=path,
        interval_text=reading.written.get("interval", "1m"),
        features=Features(**features),
        warnings=tuple(reading.warnings),
        **values,
    )


def _check_files(reading: Reading, file: str, check: FileCheck) -> None:
    for key in KEYS:
        value: Any = reading.values.get(key.name)
        if not key.file or not value:
            continue
        named = value[0] if isinstance(value, tuple) else str(value)
        if problem := check(key.file, named):
            shown = escaped(named, 200)
            reading.faults.append(Fault(file, key.name, f"must be {key.allowed}; {problem}", shown))


def _check_rules(reading: Reading, file: str) -> None:
    """The rules between keys. A key that has a fault of its own counts as not set here."""
    values = reading.values

    def fault(key: str, problem: str) -> None:
        reading.faults.append(Fault(file, key, problem))

    def on(key: str) -> bool:
        return bool(values.get(key))

    if on("features.pki") and on("features.ed25519"):
        fault("features.ed25519", "must not be on beside features.pki: a server is enrolled the one way or the other")
    given = reading.written
    if (on("features.jwt") or on("features.ed25519")) and "jwt_verify_cert" not in given:
        who = "features.jwt" if on("features.jwt") else "features.ed25519, which turns on features.jwt"
        fault("jwt_verify_cert", f"is missing: needed by {who}")
    if on("features.ed25519") and "jwt_signing_key" not in given:
        fault("jwt_signing_key", "is missing: needed by features.ed25519")
    if on("features.upgrades") and not on("upgrades_repository") and not on("upgrades_optional"):
        fault("upgrades_repository", "is missing: needed by features.upgrades, unless upgrades_optional is true")
    if on("sharing") and on("leader_election"):
        fault("sharing", "must not be on beside leader_election: either one instance works or all do")


def _file_problem(kind: str, name: str) -> str:
    try:
        return (check_command([name]) or "") if kind == "program" else _FILE_CHECKS[kind](Path(name))
    except OSError as error:
        return f"it can't be looked at: {error.strerror}"


def _readable(path: Path) -> str:
    return _regular(path) or ("" if os.access(path, os.R_OK) else "it may not be read by us")


def _regular(path: Path) -> str:
    if not path.exists():
        return "there is no such file"
    return "" if path.is_file() else "it is no regular file"


def _directory(path: Path) -> str:
    return "" if path.is_dir() else "there is no such directory"


def _writable(path: Path) -> str:
    return "it is a directory" if path.is_dir() else _directory(path.parent)


def _key(path: Path) -> str:
    hex_key = re.fullmatch("[0-9a-fA-F]{64}", str(path))
    return "" if hex_key and not path.exists() else _readable(path)


def _log(path: Path) -> str:
    return "" if str(path) in {"stdout", "stderr", "discard"} else _writable(path)


_FILE_CHECKS: dict[str, Callable[[Path], str]] = {
    "file": _readable,
    "key": _key,
    "directory": _directory,
    "parent": _writable,
    "log": _log,
}
