"""Server tokens: what a provisioned server shows the broker in an Organization Issuer deployment (wire-protocol 8.3).

The site's helper may ask for rights in one. What it asks for is given exactly or the cycle ends; it is never rounded
to something wider.
"""

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from attrs import field, frozen

from provisioner.choria.encoding import shown
from provisioner.choria.ids import KSUID_PAYLOAD_BYTES, ksuid
from provisioner.errors import BadConfiguration, ConfigError, Fault, TrustError
from provisioner.secret import Secret
from provisioner.trust.chain import ChainIssuer, load_chain_issuer, verify_chained
from provisioner.trust.claims import LEEWAY, REGISTERED, Shape, check_times, clock, flag, shaped, text, texts
from provisioner.trust.jws import sign
from provisioner.trust.keys import SigningKey, VerificationKey, load_signing_key, unhex

PURPOSE = "choria_server"
ISSUER = "Choria Provisioner"
"""``iss`` of a token that is not part of a trust chain."""

SHORTEST = 3600
"""Seconds: a server token must outlive this, or the server is lost before anybody has looked."""

LONGEST = 100 * 365 * 86400
"""Seconds: a later expiry is a slip of units (milliseconds), not a wish."""

PERMISSIONS = ("submission", "streams", "governor", "service_host")
"""In the order of the token."""

_COLLECTIVE = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_SUBJECT = re.compile(r"[!-~]{1,255}")


class Wishes(Protocol):
    """What the helper may ask for: its ``server_claims`` (``helper/contract.py`` has the type it decodes to)."""

    @property
    def collectives(self) -> Sequence[str]:
        """Empty for the default."""

    @property
    def ou(self) -> str:
        """Organization; empty for ``choria``."""

    @property
    def permissions(self) -> object | None:
        """Has the flags of ``PERMISSIONS`` as attributes; None for none."""

    @property
    def pub_subjects(self) -> Sequence[str]:
        """Further subjects it may publish to."""

    @property
    def exp(self) -> int | None:
        """Absolute Unix time in seconds; None for ``server_jwt_validity``."""


@frozen
class Issued:
    """One issued token."""

    token: Secret
    jti: str
    expires: int
    """Unix seconds."""


@frozen
class ServerTokenIssuer:
    """Issues server tokens. Load it anew for each server, so that a renewed key or token counts at once.

    Attributes:
        key: signs the tokens.
        validity: seconds for which a token is valid unless the helper says otherwise.
        chain: set when the tokens are issued in an organization's name.
        entropy: gives so many random bytes.
    """

    key: SigningKey
    validity: float
    chain: ChainIssuer | None = None
    entropy: Callable[[int], bytes] = field(default=secrets.token_bytes, repr=False)

    def issue(
        self, identity: str, public_key: str, configuration: Mapping[str, str], wishes: Wishes | None, *, now: float
    ) -> Issued:
        """Issues the token of one server.

        Args:
            identity: the server's name; a token never holds another.
            public_key: hex, as ``verify_challenge`` gave it.
            configuration: what the server is going to be configured with; decides the default collective.
            wishes: the helper's ``server_claims``, or None.
            now: Unix time in seconds.

        Returns:
            The token, its id, and when it expires: never later than the helper asked for, nor than the chain
            issuer's own token.

        Raises:
            BadConfiguration: the helper asked for what can't be given: naming the claim and what was found.
            TrustError: ``challenge_failed``, when the public key is none.
        """
        issued_at = int(now)
        jti = ksuid(issued_at, self.entropy(KSUID_PAYLOAD_BYTES))
        expires = _expiry(wishes, issued_at, self.validity)
        claims: dict[str, Any] = {
            "identity": identity,
            "collectives": _collectives(wishes, configuration),
            "permissions": _permissions(wishes),
            "ou": (wishes.ou if wishes else "") or "choria",
            "pub_subjects": _pub_subjects(wishes),
            "purpose": PURPOSE,
            "public_key": _key(public_key),
            "iss": ISSUER,
            "exp": expires,
            # Servers and broker allow 5 s of difference between clocks, or none. `iat` can't be moved back as well:
            # the id is made of it.
            "nbf": issued_at - LEEWAY,
            "iat": issued_at,
            "jti": jti,
        }
        if self.chain is not None:
            expires = min(expires, self.chain.expires)
            claims |= self.chain.link(jti, self.key) | {"exp": expires}
        return Issued(Secret(sign(shaped(claims, _SERVER), self.key)), jti, expires)


def load_server_token_issuer(
    key_file: Path, token_file: Path | None, validity: float, *, now: float
) -> ServerTokenIssuer:
    """Reads the files that server tokens are issued with.

    Args:
        key_file: ``jwt_signing_key``.
        token_file: ``jwt_signing_token``: the provisioner's own token, when an organization trusts it; or None.
        validity: ``server_jwt_validity``, seconds.
        now: Unix time in seconds.

    Raises:
        ConfigError: naming the file and what is wrong with it.
    """
    key = load_signing_key(key_file)
    if token_file is None:
        return ServerTokenIssuer(key, validity)
    if not key.public_hex:
        raise ConfigError(
            [Fault(str(key_file), "jwt_signing_key", "with jwt_signing_token this must be an Ed25519 seed, not RSA")]
        )
    return ServerTokenIssuer(key, validity, load_chain_issuer(token_file, key, now=now))


def verify_server_token(token: str, key: VerificationKey, *, now: float) -> dict[str, Any]:
    """Verifies a server token as broker and servers do, trust chain and all.

    Args:
        token: compact JWS.
        key: the Organization Issuer's public key; without a chain, the key it was signed with.
        now: Unix time in seconds.

    Returns:
        Its claims, in the order of the token.

    Raises:
        TrustError: any of the ``jwt_*`` reasons.
    """
    claims = shaped(verify_chained(token, key), _SERVER)
    if claims["purpose"] != PURPOSE:
        raise TrustError("jwt_wrong_purpose", f"the token's purpose is {shown(claims['purpose'])}, not {PURPOSE}")
    if "tcs" in claims and "issexp" not in claims:
        raise TrustError("jwt_malformed", "the token has a trust chain (tcs) but no chain issuer with an expiry")
    check_times(claims, now)
    return claims


# --- what a token says ---------------------------------------------------------------------------------------------


def _key(public_key: str) -> str:
    try:
        return unhex(public_key, 32).hex()
    except ValueError as error:
        raise TrustError("challenge_failed", f"the server's Ed25519 public key is {error}") from None


def _expiry(wishes: Wishes | None, now: int, validity: float) -> int:
    if wishes is None or wishes.exp is None:
        return now + int(validity)
    if not SHORTEST < wishes.exp - now <= LONGEST:
        raise BadConfiguration(
            f"server_claims: exp {wishes.exp} is {clock(wishes.exp)}, and now it is {clock(now)}. It is an absolute"
            " time in seconds since 1970, more than an hour ahead and less than 100 years; leave it out for"
            " server_jwt_validity"
        )
    return wishes.exp


def _collectives(wishes: Wishes | None, configuration: Mapping[str, str]) -> list[str]:
    if wishes and wishes.collectives:
        source, wanted = "server_claims: collectives", list(wishes.collectives)
    elif configuration.get("collectives"):
        source, wanted = "configuration: collectives", configuration["collectives"].split(",")
    else:
        return ["choria" if configuration.get("plugin.security.provider") == "choria" else "mcollective"]
    collectives = [name.strip() for name in wanted]
    for name in collectives:
        # A wildcard here would be a right on every collective.
        if not _COLLECTIVE.fullmatch(name):
            raise BadConfiguration(f"{source} has {shown(name)}, which is not the name of a collective")
    return collectives


def _permissions(wishes: Wishes | None) -> dict[str, bool] | None:
    if wishes is None or wishes.permissions is None:
        return None
    return {name: True for name in PERMISSIONS if getattr(wishes.permissions, name)}


def _pub_subjects(wishes: Wishes | None) -> list[str]:
    subjects = list(wishes.pub_subjects) if wishes else []
    for subject in subjects:
        if not _SUBJECT.fullmatch(subject):
            raise BadConfiguration(f"server_claims: pub_subjects has {shown(subject)}, which is not a NATS subject")
    return subjects


def _granted(value: object) -> dict[str, bool]:
    if not isinstance(value, dict):
        raise TypeError("must be an object")
    return {name: True for name in PERMISSIONS if flag(value.get(name, False))}


_SERVER: Shape = (
    ("identity", text),
    ("collectives", texts),
    ("permissions", _granted),
    ("ou", text),
    ("pub_subjects", texts),
    *REGISTERED,
)
