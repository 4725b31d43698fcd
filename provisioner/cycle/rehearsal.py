"""What would come of a helper's answer, without a server: for trying a helper, and for a dry run.

The checks are those of a real cycle, run to their end: every complaint is found, not only the first.
"""

from collections.abc import Callable

from attrs import frozen

from provisioner.config import Config
from provisioner.cycle.delivery import delivery_problems
from provisioner.cycle.facts import Facts
from provisioner.cycle.version import same_version
from provisioner.errors import ProvisionerError, TrustError
from provisioner.helper.contract import HelperReply
from provisioner.trust.sealing import ExchangeKey, seal_private_key
from provisioner.trust.server_token import ServerTokenIssuer

NO_KEY = "00" * 32
"""Stands for a server's public key that was not fetched; the token made with it is thrown away."""


@frozen
class Complaint:
    """One thing wrong with an answer, under its reason word."""

    word: str
    text: str


@frozen
class Rehearsal:
    """How a cycle would end with this answer.

    Attributes:
        word: the outcome there would be; with complaints the first one's.
        text: what belongs to it.
        complaints: all that is wrong.
    """

    word: str
    text: str = ""
    complaints: tuple[Complaint, ...] = ()


def rehearse(
    reply: HelperReply, facts: Facts, config: Config, *, issuer: ServerTokenIssuer | None = None, now: float
) -> Rehearsal:
    """How a cycle would end with this answer.

    Args:
        reply: the helper's answer.
        facts: what is known of the server.
        config: the provisioner's.
        issuer: tries the ``server_claims``, where ``features.ed25519`` is on.
        now: Unix time in seconds.
    """
    if reply.defer:
        return Rehearsal("deferred", reply.msg)
    if reply.shutdown:
        return Rehearsal("shut_down", reply.msg)
    if config.features.upgrades and reply.upgrade and not same_version(facts.version, reply.upgrade):
        if config.upgrades_repository and (facts.inventory or {}).get("upgradable"):
            return Rehearsal("upgrading", f"from {facts.version} to {reply.upgrade}")
        if not config.upgrades_optional:
            text = "no upgrades_repository is configured, or the server is not upgradable"
            return Rehearsal("upgrade_failed", text, (Complaint("upgrade_failed", text),))
    found = delivery_problems(facts, reply)
    for check in (lambda: _seal(reply, config), lambda: _issue(reply, facts, issuer, now)):
        found += _raised(check)
    complaints = tuple(Complaint(error.reason, str(error)) for error in found)
    if complaints:
        return Rehearsal(complaints[0].word, complaints[0].text, complaints)
    return Rehearsal("provisioned", reply.msg)


def _seal(reply: HelperReply, config: Config) -> None:
    if reply.key:
        if not config.features.jwt:
            raise TrustError(
                "seal_failed", "a private key needs features.jwt: without it there is no key to seal it for"
            )
        seal_private_key(reply.key, ExchangeKey().public)


def _issue(reply: HelperReply, facts: Facts, issuer: ServerTokenIssuer | None, now: float) -> None:
    if issuer is not None:
        public_key = (facts.ed25519 or {}).get("public_key", NO_KEY)
        issuer.issue(facts.identity, public_key, reply.configuration, reply.server_claims, now=now)


def _raised(check: Callable[[], None]) -> list[ProvisionerError]:
    try:
        check()
    except ProvisionerError as error:
        return [error]
    return []
