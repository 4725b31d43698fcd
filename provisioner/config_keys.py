"""The table of the provisioner's configuration keys: reading, messages, documentation and tests follow from it.

Rules that join two keys are in ``config.py``.
"""

import re
from functools import partial
from pathlib import Path

import re2

from provisioner.command import split_command
from provisioner.keys import Key, Unfit, boolean, duration, integer, text, texts, word
from provisioner.secret import Secret
from provisioner.strictyaml import Tree

MAX_WORKERS = 1000
MAX_TOKEN = 128
"""Characters: the agent refuses a longer one (wire-protocol 6.2)."""

DENY_LIST = (r"\.privileged.mcollective$", r"\.privileged.choria$", r"\.mcollective$", r"\.choria$")

DEAD: dict[str, str] = {
    "broker_port": "this key does nothing, here as in the Go program; remove it",
    "rego_policy": "this key does nothing, here as in the Go program; remove it: policies come from the helper",
}
"""Keys that the Go program declares and never reads, with what is said about them."""


# --- readers of this file's own -------------------------------------------------------------------------------------


def _command(value: Tree) -> tuple[str, ...]:
    return split_command(text(value))


def _token(value: Tree) -> Secret:
    found = text(value)
    if len(found) > MAX_TOKEN:
        raise Unfit(f"it has {len(found)}")
    return Secret(found)


def _secret(value: Tree) -> Secret:
    return Secret(text(value))


def _path(value: Tree) -> Path:
    return Path(text(value))


def _component(value: Tree) -> str:
    found = text(value)
    if re.search(r"[.*>\s]", found):
        raise Unfit
    return found


def _pattern(pattern: str) -> str:
    # As in the reference, a pattern may be written between slashes.
    bare = pattern.strip("/")
    options = re2.Options()
    options.log_errors = False
    try:
        re2.compile(bare, options)
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        raise Unfit(reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)) from None
    return bare


def _oid(oid: str) -> str:
    if not re.fullmatch(r"[0-2](\.(0|[1-9][0-9]{0,38})){1,30}", oid):
        raise Unfit("not a dotted number such as 1.3.6.1.4.1.34380.1.1.1; put it in quotes")
    return oid


# --- the table ------------------------------------------------------------------------------------------------------

_TRUTH = "true or false"
_off = partial(Key, read=boolean, allowed=_TRUTH, default=False, default_text="`false`")

KEYS: tuple[Key, ...] = (
    Key(
        name="workers",
        read=integer(0, MAX_WORKERS),
        allowed=f"a whole number from 0 to {MAX_WORKERS} (0: one for each CPU)",
        default=0,
        default_text="one for each CPU",
        reload=False,
        doc="How many servers are worked on at the same time.",
    ),
    Key(
        name="interval",
        read=duration(60.0),
        allowed="a duration of at least 1 minute, such as 1m, 90s or 1h30m",
        default=60.0,
        default_text="`1m`",
        doc="Time between two discoveries. A server that waits for a worker longer than two intervals is dropped.",
    ),
    Key(
        name="helper",
        read=_command,
        allowed="a command, such as /opt/prov/helper.rb --site 'New York'",
        required=True,
        file="program",
        doc="The site's program that decides about each server. Split into words as a shell does; no shell is run.",
    ),
    Key(
        name="helper_mode",
        read=word("process", "stream"),
        allowed="process or stream",
        default="process",
        default_text="`process`",
        reload=False,
        doc="`process` starts the helper once for each server. `stream` keeps some running: a JSON line in, one out.",
    ),
    Key(
        name="helper_processes",
        read=integer(0, MAX_WORKERS),
        allowed=f"a whole number from 0 to {MAX_WORKERS} (0: one for each worker)",
        default=0,
        default_text="one for each worker",
        reload=False,
        doc="How many helpers run in `helper_mode: stream`.",
    ),
    _off(name="helper_input_extra", doc="Adds `attempt` and `site` to what the helper is told."),
    Key(
        name="token",
        read=_token,
        allowed=f"a text of at most {MAX_TOKEN} characters",
        required=True,
        secret=True,
        doc="The provisioning token, as in the servers' `provisioning.jwt`. Sent with each `choria_provision` request.",
    ),
    Key(
        name="site",
        read=text,
        allowed="a text",
        default="",
        default_text="empty",
        reload=False,
        doc="Name of this installation: the label `site` of every metric.",
    ),
    Key(
        name="lifecycle_component",
        read=_component,
        allowed="one word without a dot, `*`, `>` or space",
        default="provision_mode_server",
        default_text="`provision_mode_server`",
        reload=False,
        doc="The component whose startup events announce a server.",
    ),
    Key(
        name="logfile",
        read=text,
        allowed="a file in a directory that exists, or stdout, stderr or discard",
        default="",
        default_text="standard output",
        reload=False,
        file="log",
        doc="Where the log goes. A file gets JSON lines and is reopened on SIGHUP; a terminal or a pipe gets text.",
    ),
    Key(
        name="loglevel",
        read=word("debug", "info", "warn", "error", "fatal"),
        allowed="debug, info, warn, error or fatal",
        default="info",
        default_text="`info`",
        doc="The least level that is logged.",
    ),
    Key(
        name="monitor_port",
        read=integer(0, 65535),
        allowed="a port number from 1 to 65535, or 0 for none",
        default=0,
        default_text="none",
        reload=False,
        doc="TCP port of `/metrics`, `/healthz` and `/readyz`, on every address of this machine.",
    ),
    Key(
        name="status_listen",
        read=word("loopback", "all"),
        allowed="loopback or all",
        default="loopback",
        default_text="`loopback`",
        reload=False,
        doc="Who may see `/` and `/status`, which name servers: this machine only, or whoever reaches `monitor_port`.",
    ),
    _off(
        name="choria_insecure",
        reload=False,
        doc="No TLS, no signatures, security provider `file`. For a laboratory only.",
    ),
    Key(
        name="broker_provisioning_password",
        read=_secret,
        allowed="a text",
        default=Secret(""),
        default_text="none",
        secret=True,
        reload=False,
        doc="Logs in to the broker as user `provisioner` with this password.",
    ),
    _off(name="features.jwt", doc="Fetch each server's `provisioning.jwt` and verify it with `jwt_verify_cert`."),
    _off(
        name="features.pki",
        doc="Fetch a signing request, check it, tell the helper. Not with `features.ed25519`.",
    ),
    _off(
        name="features.ed25519",
        doc="Challenge each server's Ed25519 key and issue its token (Organization Issuer). Turns on `features.jwt`.",
    ),
    _off(name="features.upgrades", doc="Upgrade a server to the version that the helper names, before configuring it."),
    Key(
        name="jwt_verify_cert",
        read=text,
        allowed="a file that exists (certificate, public key or hex key), or 64 hex digits",
        default="",
        default_text="none",
        file="key",
        doc="What `provisioning.jwt` is verified with. Needed by `features.jwt`.",
    ),
    Key(
        name="jwt_signing_key",
        read=_path,
        allowed="a file that exists",
        default_text="none",
        file="file",
        doc="Key that signs the servers' tokens. Needed by `features.ed25519`.",
    ),
    Key(
        name="jwt_signing_token",
        read=_path,
        allowed="a file that exists",
        default_text="none",
        file="file",
        doc="Token of the signing key, where an issuer delegated to it. Read anew for each server.",
    ),
    Key(
        name="server_jwt_validity",
        read=duration(3600.0),
        allowed="a duration of at least 1 hour, such as 30d or 1y",
        default=365 * 86400.0,
        default_text="`1y`",
        doc="How long a server's token is valid when the helper doesn't say.",
    ),
    Key(
        name="cert_deny_list",
        read=texts(_pattern),
        allowed="a list of RE2 patterns",
        default=DENY_LIST,
        default_text=", ".join(f"`{pattern}`" for pattern in DENY_LIST),
        doc="Names that no signing request may have. A list given here replaces the default one.",
    ),
    Key(
        name="cert_allow_extensions",
        read=texts(_oid),
        allowed="a list of object identifiers",
        default=(),
        default_text="none",
        doc="Extensions that a signing request may ask for beyond the usual ones.",
    ),
    _off(name="leader_election", reload=False, doc="Several instances, of which one works: elected in Choria Streams."),
    _off(
        name="create_bucket",
        reload=False,
        doc="Make the election's bucket on a plain JetStream server. A Choria broker makes it itself.",
    ),
    _off(
        name="sharing",
        reload=False,
        doc="Several instances, which all work on one fleet. Not with `leader_election`.",
    ),
    Key(
        name="upgrades_repository",
        read=text,
        allowed="a text",
        default="",
        default_text="none",
        doc="Where servers fetch upgrades from.",
    ),
    _off(name="upgrades_optional", doc="Configure a server even if its upgrade fails."),
    Key(
        name="record_inputs",
        read=_path,
        allowed="a directory that exists",
        default_text="none",
        file="directory",
        doc="Write each helper input there, with the provisioning token masked, to try a helper on: `<identity>.json`.",
    ),
    Key(
        name="audit_log",
        read=_path,
        allowed="a file in a directory that exists",
        default_text="none",
        reload=False,
        file="parent",
        doc="One JSON line for each outcome ([operating](operating.md)). Reopened on SIGHUP.",
    ),
)
"""Every key, in the order of the documentation."""
