"""The trust chain: a provisioner issues tokens in its Organization Issuer's name (wire-protocol 8.5).

Two signatures lead from a server's token to the organization: the organization's over the chain issuer's id and key,
and the chain issuer's over the token's id and that first signature. Both are made and checked here.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import frozen
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from provisioner.choria.ids import parse_ksuid
from provisioner.errors import ConfigError, Fault, TrustError
from provisioner.trust.claims import REGISTERED, check_times, clock, shaped
from provisioner.trust.jws import unverified_claims, verify_signature
from provisioner.trust.keys import SigningKey, VerificationKey, ed25519_verifier, read_file, unhex

ORGANIZATION = "I-"
"""Begins the ``iss`` of a token that the organization made for somebody who may issue others."""

CHAIN = "C-"
"""Begins the ``iss`` of a token made by such a chain issuer."""


@frozen
class ChainIssuer:
    """Somebody who may issue tokens in the organization's name, and until when."""

    id: str
    """The ``jti`` of its own token."""
    public_key: str
    """Hex."""
    signature: str
    """The organization's signature of the two above, hex."""
    expires: int
    """Unix seconds. Nothing it issues is valid for longer."""

    def link(self, token_id: str, key: SigningKey) -> dict[str, Any]:
        """The claims that tie a new token to the organization.

        Args:
            token_id: the ``jti`` of the new token.
            key: this issuer's own key.

        Returns:
            ``iss``, ``issexp`` and ``tcs``.
        """
        assert isinstance(key.key, Ed25519PrivateKey)
        signature = key.key.sign(f"{token_id}.{self.signature}".encode()).hex()
        return {
            "iss": f"{CHAIN}{self.id}.{self.public_key}",
            "issexp": self.expires,
            "tcs": f"{self.signature}.{signature}",
        }


def load_chain_issuer(path: Path, key: SigningKey, *, now: float, name: str = "jwt_signing_token") -> ChainIssuer:
    """Reads the provisioner's own token, with which it signs server tokens in the organization's name.

    Args:
        path: a client's token, made by the Organization Issuer for a chain issuer.
        key: ``jwt_signing_key``; the token must be for this key.
        now: Unix time in seconds.
        name: the configuration key, for messages.

    Raises:
        ConfigError: naming the file and what is wrong with the token; never its text.
    """
    token = read_file(path, name)
    try:
        return _chain_issuer(token, key, now)
    except (TrustError, ValueError) as error:
        raise ConfigError([Fault(str(path), name, f"no token to sign server tokens with: {error}")]) from None


def _chain_issuer(token: str, key: SigningKey, now: float) -> ChainIssuer:
    claims = shaped(unverified_claims(token), REGISTERED)
    if claims["purpose"] != "choria_client_id":
        raise ValueError("it is not a client's token (purpose choria_client_id)")
    if "tcs" not in claims:
        raise ValueError("it has no Trust Chain Signature (claim tcs)")
    _require(claims, "jti", "public_key", "exp", "iss")
    if not claims["iss"].startswith(ORGANIZATION):
        raise ValueError("the Organization Issuer did not make it for a chain issuer: its iss doesn't begin with I-")
    if key.public_hex != claims["public_key"].lower():
        raise ValueError("it is for another key than the one in jwt_signing_key")
    # The organization's key is taken from the token itself: this finds a damaged token, not a forged one. Whoever
    # believes our tokens (broker, servers) has that key from its own configuration.
    organization = ed25519_verifier(claims["iss"].removeprefix(ORGANIZATION))
    verify_signature(token, organization)
    issuer = ChainIssuer(claims["jti"], claims["public_key"].lower(), claims["tcs"], claims["exp"])
    _check(organization, f"{issuer.id}.{issuer.public_key}", issuer.signature, "the organization's signature (tcs)")
    check_times(claims, now)
    if issuer.expires <= now:  # no leeway on what we hand on: a token from it would be refused by everybody
        raise ValueError(f"it expired at {clock(issuer.expires)}; here it is {clock(now)}")
    return issuer


def verify_chained(token: str, organization: VerificationKey) -> dict[str, Any]:
    """Verifies a token by the organization's key, through a chain issuer where its ``iss`` says so.

    Args:
        token: compact JWS.
        organization: the Organization Issuer's public key (or, without a chain, the key that signed).

    Returns:
        The payload as it stands, both signatures of the chain and that of the token verified; times not checked.

    Raises:
        TrustError: ``jwt_missing``, ``jwt_malformed``, ``jwt_bad_algorithm`` or ``jwt_bad_signature``.
    """
    payload = unverified_claims(token)
    claims = shaped(payload, REGISTERED)
    if not claims.get("iss", "").startswith(CHAIN):
        return verify_signature(token, organization)
    try:
        _require(claims, "public_key", "tcs", "jti", "iat", "exp", "issexp")
        issuer_id, issuer_key = _two(claims["iss"].removeprefix(CHAIN), "iss")
        first, second = _two(claims["tcs"], "tcs")
        issuer_key = unhex(issuer_key, 32).hex()
        _require_bounds(claims)
    except ValueError as error:
        raise TrustError("jwt_malformed", f"the token's trust chain is broken: {error}") from None
    issuer = ed25519_verifier(issuer_key)
    try:
        _check(organization, f"{issuer_id}.{issuer_key}", first, "the organization's signature of the issuer")
        _check(issuer, f"{claims['jti']}.{first}", second, "the issuer's signature of the token's id")
    except ValueError as error:
        raise TrustError("jwt_bad_signature", f"the token's trust chain is broken: {error}") from None
    return verify_signature(token, issuer)


def _require(claims: Mapping[str, Any], *names: str) -> None:
    missing = [name for name in names if name not in claims]
    if missing:
        raise ValueError(f"it has no claim {', '.join(missing)}")


def _require_bounds(claims: Mapping[str, Any]) -> None:
    if parse_ksuid(claims["jti"])[0] != claims["iat"]:
        raise ValueError(f"its id (jti) was not made when it was issued, {clock(claims['iat'])}")
    if claims["exp"] > claims["issexp"]:
        raise ValueError("it is valid for longer than its issuer's own token")


def _two(text: str, name: str) -> tuple[str, str]:
    parts = text.split(".")
    if len(parts) != 2 or not all(parts):
        raise ValueError(f"its {name} has not two parts")
    return parts[0], parts[1]


def _check(key: VerificationKey, signed: str, signature: str, what: str) -> None:
    """Checks one Ed25519 signature, given in hex.

    Raises:
        ValueError: it is not by that key.
    """
    if not isinstance(key.key, Ed25519PublicKey):
        raise ValueError(f"{what} can't be checked with an RSA key")  # noqa: TRY004
    try:
        key.key.verify(unhex(signature, 64), signed.encode())
    except InvalidSignature:
        raise ValueError(f"{what} doesn't fit") from None
