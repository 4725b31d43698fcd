"""What is sent to a server in ``configure``, decided whole before anything is written there (wire-protocol 6.5).

A server does not undo the first half of a ``configure`` whose second half fails, and it wipes its policies before it
writes the new ones. So everything that it would refuse, or would silently leave out, is refused here.
"""

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from provisioner import strictjson
from provisioner.cycle.facts import Facts
from provisioner.errors import BadConfiguration, ProvisionerError, TrustError
from provisioner.helper.contract import HelperReply
from provisioner.secret import Secret
from provisioner.trust.policies import check_policies

LINE_LIMIT = 65_000
"""Bytes of one ``key=value`` line; a server stops reading its file at a line over 64 KiB (wire-protocol 11.3)."""

POLICY_LIMIT = 1 << 20
"""Bytes of one policy document."""

_KEY = re.compile(r"[A-Za-z0-9_.\-]{1,255}")
_TRUE = {"1", "yes", "true", "y", "t"}


def configure_data(
    facts: Facts, reply: HelperReply, *, token: Secret, server_jwt: Secret, key: str, ecdh_public: str
) -> dict[str, Any]:
    """The data of the ``configure`` call: always all ten keys, sorted, as the Go program sends them.

    Args:
        facts: what is known of the server.
        reply: what the helper answered.
        token: the provisioning token.
        server_jwt: the signed server token, or an empty one.
        key: the sealed private key in PEM, or ``""``.
        ecdh_public: our public key for it in hex, or ``""``.

    Raises:
        BadConfiguration: the server would refuse it, or would leave a part of it out without a word.
    """
    ssldir = (facts.csr or {}).get("ssldir") or reply.ssldir
    for check in _checks(reply, ssldir, key=bool(key)):
        check()
    return {
        "action_policies": dict(reply.action_policies),
        "ca": reply.ca,
        "certificate": reply.certificate,
        "config": strictjson.dumps(dict(reply.configuration), sort_keys=True),
        "ecdh_public": ecdh_public,
        "key": key,
        "opa_policies": dict(reply.opa_policies),
        "server_jwt": server_jwt.reveal(),
        "ssldir": ssldir,
        "token": token.reveal(),
    }


def delivery_problems(facts: Facts, reply: HelperReply) -> list[ProvisionerError]:
    """Everything for which ``configure_data`` would refuse this answer, and not only the first."""
    found: list[ProvisionerError] = []
    ssldir = (facts.csr or {}).get("ssldir") or reply.ssldir
    for check in _checks(reply, ssldir, key=bool(reply.key)):
        try:
            check()
        except (BadConfiguration, TrustError) as error:
            found.append(error)
    return found


def _checks(reply: HelperReply, ssldir: str, *, key: bool) -> tuple[Callable[[], None], ...]:
    return (
        partial(check_configuration, reply.configuration),
        partial(_check_tls, reply, ssldir, key),
        partial(check_policies, reply.action_policies, reply.opa_policies),
        partial(_check_documents, "action_policies", reply.action_policies),
        partial(_check_documents, "opa_policies", reply.opa_policies),
    )


def check_configuration(configuration: Mapping[str, str]) -> None:
    """Refuses a configuration that would not survive being written as ``key=value`` lines.

    Raises:
        BadConfiguration: it is empty, a key or value would break its line, or it would keep the server in
            provisioning mode, so that ``restart`` refuses after everything was written.
    """
    if not configuration:
        raise BadConfiguration("the helper's configuration is empty")
    for key, value in configuration.items():
        if not _KEY.fullmatch(key):
            raise BadConfiguration(f"configuration key {key[:80]!r} is not one: letters, digits and _ . - are")
        if any(c in value for c in "\n\r\0"):
            raise BadConfiguration(f"the value of configuration key {key} has a line break or a NUL")
        if len(key) + len(value.encode()) > LINE_LIMIT:
            raise BadConfiguration(f"the value of configuration key {key} is over {LINE_LIMIT} bytes")
    if configuration.get("plugin.choria.server.provision", "").strip().lower() in _TRUE:
        raise BadConfiguration(
            "plugin.choria.server.provision is on: the server would refuse to leave provisioning mode"
        )


def _check_tls(reply: HelperReply, ssldir: str, key: bool) -> None:
    parts = {"certificate": reply.certificate, "ca": reply.ca, "ssldir": ssldir}
    missing = [name for name, value in parts.items() if not value]
    given = [name for name in ("certificate", "ca") if parts[name]] + ["key"] * key
    if given and missing:
        raise BadConfiguration(
            f"the helper gave {' and '.join(given)} without {' and '.join(missing)}: "
            "the server writes certificate, ca and key only together with all of certificate, ca and ssldir"
        )


def _check_documents(field: str, policies: Mapping[str, str]) -> None:
    for name, text in policies.items():
        if not text:
            raise BadConfiguration(f"{field}: {name} is empty; the server would not write it")
        if len(text.encode()) > POLICY_LIMIT:
            raise BadConfiguration(f"{field}: {name} is over {POLICY_LIMIT} bytes")
