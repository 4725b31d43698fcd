"""``check --compare``: what a file written for the Go program means here, where that differs (docs/differences.md)."""

from collections.abc import Callable, Mapping
from pathlib import Path

from attrs import frozen

from provisioner.cli.findings import Finding, from_fault
from provisioner.config import parse_config
from provisioner.config_keys import DEAD, KEYS
from provisioner.errors import ConfigError, Fault
from provisioner.printable import escaped
from provisioner.strictyaml import NotYAML, Scalar, Tree, load

MAX_BYTES = 4 << 20

SAME = frozenset(
    {
        "workers", "interval", "token", "site", "lifecycle_component", "choria_insecure",
        "broker_provisioning_password", "upgrades_repository", "upgrades_optional",
    }
)  # fmt: skip
"""Keys of the Go program that mean the same here, as far as they are accepted at all."""

Given = Mapping[str, Tree]


@frozen
class Difference:
    """One key that means something else there. ``applies`` decides from the keys that the file gives."""

    key: str
    go: str
    here: str
    applies: Callable[[Given], bool]


def _text(given: Given, key: str) -> str:
    value = given.get(key)
    return value.text if isinstance(value, Scalar) else ""


def _given(key: str) -> Callable[[Given], bool]:
    return lambda given: bool(_text(given, key)) or isinstance(given.get(key), list)


def _on(key: str) -> Callable[[Given], bool]:
    return lambda given: _text(given, key).lower() in {"true", "yes", "on"}


def _absent(key: str) -> Callable[[Given], bool]:
    return lambda given: not _text(given, key)


DIFFERENCES: tuple[Difference, ...] = (
    Difference(
        "logfile", "not given: a file called info in the working directory", "standard output", _absent("logfile")
    ),
    Difference(
        "logfile",
        "stderr and discard have no effect",
        "they do as they say",
        lambda given: _text(given, "logfile") in {"stderr", "discard"},
    ),
    Difference("loglevel", "not given: warn", "info", _absent("loglevel")),
    Difference(
        "helper",
        "may hold a worker beyond 10 s and print without limit; its stderr is lost",
        "killed at 10 s with all its children; at most 1 MiB; its stderr is logged",
        _given("helper"),
    ),
    Difference(
        "monitor_port",
        "serves /metrics",
        "serves /healthz, /readyz and /status too, the last to this machine only; a port in use stops the start",
        _given("monitor_port"),
    ),
    Difference(
        "cert_deny_list",
        "a pattern that does not compile lets everything by",
        "it stops the start; names are matched in lower case too",
        _given("cert_deny_list"),
    ),
    Difference(
        "jwt_verify_cert",
        "looked at when the first server comes; a misspelled path counts as a hex key; no leeway between clocks",
        "looked at when the daemon starts; a path that is not there stops it; 60 s of leeway",
        _given("jwt_verify_cert"),
    ),
    Difference(
        "jwt_signing_key",
        "looked at when the first server comes; a final newline in a seed file is a fault",
        "looked at when the daemon starts; a final newline is no fault",
        _given("jwt_signing_key"),
    ),
    Difference(
        "jwt_signing_token", "looked at when the first server comes", "looked at when the daemon starts too",
        _given("jwt_signing_token"),
    ),
    Difference(
        "server_jwt_validity",
        "also in place of an exp of the helper's that is past or under an hour away",
        "only where the helper gives no exp; a past one is refused",
        _on("features.ed25519"),
    ),
    Difference(
        "leader_election",
        "without the bucket at start it stays paused for ever; a stopped leader keeps the lead for a minute",
        "looks for the bucket until it is there; a leader that is stopped hands over at once",
        _on("leader_election"),
    ),
    Difference(
        "features.jwt",
        "an expired token by a second is refused, and logged as a fault of the cycle",
        "60 s of leeway; each way to be wrong has its own word in log and metrics",
        _on("features.jwt"),
    ),
    Difference(
        "features.pki",
        "names beyond CN and DNS names, and extensions, are let by",
        "a request may name the server alone; cert_allow_extensions lets chosen extensions by",
        _on("features.pki"),
    ),
    Difference(
        "features.ed25519",
        "a claim out of range is replaced in silence",
        "it ends that cycle with bad_configuration",
        _on("features.ed25519"),
    ),
    Difference(
        "features.upgrades",
        "a started upgrade counts as provisioned, and may be started for ever",
        "its outcome is upgrading; the fourth without a change of version is upgrade_loop",
        _on("features.upgrades"),
    ),
)  # fmt: skip
"""Every key of the Go program's that isn't in ``SAME`` and isn't dead has at least one."""

_GO_KEYS = frozenset(SAME | DEAD.keys() | {difference.key for difference in DIFFERENCES})


def compare(path: Path) -> list[Finding]:
    """What is refused here, what means something else, and what only one of the two knows."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES).decode()
        tree = load(content)
    except OSError as error:
        return [from_fault(Fault(str(path), "", f"can't be read: {error.strerror}"), "file")]
    except UnicodeDecodeError as error:
        return [from_fault(Fault(str(path), "", f"is not UTF-8 at byte {error.start}"), "file")]
    except NotYAML as error:
        return [from_fault(Fault(str(path), "", f"can't be read as YAML: {error}"), "file")]
    found: list[Finding] = []
    try:
        parse_config(content, path)
    except ConfigError as error:
        found += [from_fault(fault, fault.key or "file") for fault in error.faults]
    given = _flat(tree)
    found += [finding for key in given if (finding := _about_key(key)) is not None]
    for difference in DIFFERENCES:
        if difference.applies(given):
            text = f"the Go program: {difference.go}; here: {difference.here}"
            found.append(Finding("warn", difference.key, text))
    if not found:
        found.append(Finding("ok", "file", f"every key of {path} means here what it means to the Go program"))
    return found


def _about_key(key: str) -> Finding | None:
    """A key that not both programs read."""
    ours, shown = {each.name for each in KEYS}, escaped(key, 100)
    if key in DEAD:
        return Finding("warn", shown, "does nothing, in either program", "remove it")
    if key in ours:
        text = "the Go program ignores it; here it counts"
        return None if key in _GO_KEYS else Finding("warn", shown, text, "remove it to go back")
    if key.lower() in ours:
        return Finding("warn", shown, "the Go program takes it; here it is ignored", f"write {key.lower()}")
    return Finding("warn", shown, "unknown to both, and ignored by both", "correct its name, or remove it")


def _flat(tree: Tree) -> dict[str, Tree]:
    if not isinstance(tree, dict):
        return {}
    flat: dict[str, Tree] = {}
    for name, value in tree.items():
        if name == "features" and isinstance(value, dict):
            flat.update({f"features.{inner}": each for inner, each in value.items()})
        elif name != "features":
            flat[name] = value
    return flat
