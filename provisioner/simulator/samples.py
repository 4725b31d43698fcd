"""Helper inputs of servers that don't exist: what a real cycle would tell the helper about them, byte for byte."""

from typing import Any

from attrs import frozen

from provisioner.config import Config
from provisioner.cycle.facts import Facts
from provisioner.helper.contract import encode_input
from provisioner.simulator.fleet import make_servers
from provisioner.simulator.node import Node
from provisioner.simulator.site import Site
from provisioner.trust.challenge import fresh_nonce, verify_challenge
from provisioner.trust.tokens import verify_provisioning_token

TOKEN = "sample"  # noqa: S105 - guards nothing
_ROLES = ("web", "db", "cache", "test")
_PLACES = ("london", "oslo")


@frozen
class Sample:
    """What is known of one server, and what the helper is told about it."""

    facts: Facts
    payload: bytes

    @property
    def identity(self) -> str:
        """The server's."""
        return self.facts.identity


def make_samples(number: int, config: Config, *, now: float) -> list[Sample]:
    """Inputs of so many simulated servers, with the features that the configuration has on.

    Args:
        number: how many.
        config: features, ``site`` and ``helper_input_extra`` count.
        now: Unix time in seconds.
    """
    version = 2 if config.features.ed25519 else 1
    made = make_servers(number, version=version, token=TOKEN, now=now, site=Site(token="", jwt="", facts=_facts))
    claims = verify_provisioning_token(made.site.jwt, made.issuer.key.public, now=now) if config.features.jwt else None
    return [_sample(server.node, config, claims) for server in made.servers]


def _sample(node: Node, config: Config, claims: dict[str, Any] | None) -> Sample:
    facts = Facts(node.identity, claims, inventory=node.inventory({})[0])
    if config.features.pki:
        facts.csr = node.gencsr({"cn": node.identity})[0]
    if config.features.ed25519:
        nonce = fresh_nonce()
        answer = node.gen25519({"nonce": nonce})[0]
        facts.ed25519 = {**answer, "public_key": verify_challenge(answer["public_key"], answer["signature"], nonce)}
    extra = {"attempt": 1, "site": config.site} if config.helper_input_extra else None
    payload = encode_input(
        identity=facts.identity,
        csr=facts.csr,
        ed25519_pubkey=facts.ed25519,
        inventory=facts.inventory_text,
        jwt=claims,
        extra=extra,
    )
    return Sample(facts, payload)


def _facts(identity: str) -> dict[str, Any]:
    """Some variety: a role and a place by the number in the name."""
    number = int("".join(c for c in identity.partition(".")[0] if c.isdecimal()) or 1) - 1
    return {
        "fqdn": identity,
        "dc": _PLACES[number // len(_ROLES) % len(_PLACES)],
        "os": {"family": "RedHat", "release": "9"},
        "role": _ROLES[number % len(_ROLES)],
    }
