"""What can be seen of our own login before a broker refuses it without a reason: token and certificate.

Nothing here decides about a stranger: these are our own files, read to find a mistake in them.
"""

from datetime import UTC, datetime

from attrs import frozen
from cryptography import x509
from cryptography.exceptions import InvalidSignature

from provisioner.errors import TrustError
from provisioner.trust.claims import check_times, clock, date
from provisioner.trust.jws import unverified_claims

CLIENT_PURPOSE = "choria_client_id"
LONGEST_CHAIN = 10


@frozen
class ClientToken:
    """What our own client token says: caller id, organization (``ou``), and when it ends, in Unix seconds."""

    caller: str
    organization: str
    expires: int

    def __str__(self) -> str:
        organization = self.organization or "not named"
        return f"the token of {self.caller} (organization {organization}, until {clock(self.expires)})"


def check_client_token(token: str, *, now: float) -> ClientToken:
    """Checks what a broker will check of a provisioner's token, except for its signature (wire-protocol 1.5, 1.7).

    Args:
        token: the file's content.
        now: Unix time in seconds.

    Raises:
        TrustError: not a token, of another purpose, without caller id, without the permission ``provisioner``, expired,
            not yet valid, or without an end, which a broker takes for expired.
    """
    claims = unverified_claims(token)
    purpose = claims.get("purpose")
    if purpose != CLIENT_PURPOSE:
        found = f"the token's purpose is {str(purpose)[:50]!a}"
        raise TrustError("jwt_wrong_purpose", f"{found}; a client token ({CLIENT_PURPOSE}) is wanted")
    caller = claims.get("callerid")
    if not isinstance(caller, str) or not caller:
        raise TrustError("jwt_malformed", "the token has no callerid")
    permissions = claims.get("permissions")
    if not isinstance(permissions, dict) or permissions.get("provisioner") is not True:
        raise TrustError(
            "jwt_wrong_purpose", "the token lacks the permission `provisioner`, without which a broker refuses it"
        )
    times = {name: _seconds(name, claims[name]) for name in ("exp", "issexp", "nbf") if claims.get(name) is not None}
    ends = [times[name] for name in ("exp", "issexp") if name in times]
    if not ends:
        raise TrustError("jwt_expired", "the token never expires, which a broker takes for expired")
    check_times(times, now)
    organization = claims.get("ou")
    return ClientToken(caller[:200], organization[:100] if isinstance(organization, str) else "", min(ends))


def _seconds(name: str, value: object) -> int:
    try:
        return date(value)
    except (TypeError, ValueError) as error:
        raise TrustError("jwt_malformed", f"the token's claim {name} {error}") from None


@frozen
class OwnCertificate:
    """What our own certificate says, and whether one of the given authorities issued it (None: none given)."""

    subject: str
    issued_by_ours: bool | None

    def __str__(self) -> str:
        return f"the certificate of {self.subject}"


def check_own_certificate(certificate: str, authorities: str, *, now: float) -> OwnCertificate:
    """Checks the certificate that we show to a broker.

    Args:
        certificate: PEM, ours first, then those that lead to an authority.
        authorities: PEM, or ``""``.
        now: Unix time in seconds.

    Raises:
        TrustError: not PEM certificates, expired or not yet valid.
    """
    chain = _certificates(certificate, "the certificate")
    own, here = chain[0], datetime.fromtimestamp(now, UTC)
    begins, ends = own.not_valid_before_utc, own.not_valid_after_utc
    if not begins <= here <= ends:
        what = "expired at" if here > ends else "is valid from"
        at = clock((ends if here > ends else begins).timestamp())
        raise TrustError("bad_configuration", f"the certificate {what} {at}; here it is {clock(now)}")
    issued = None
    if authorities:
        issued = _leads_to(own, chain[1:], _certificates(authorities, "the authority's certificate"))
    return OwnCertificate(own.subject.rfc4514_string()[:200], issued)


def _certificates(text: str, what: str) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(text.encode())
    except ValueError:
        raise TrustError("bad_configuration", f"{what} can't be read: PEM is wanted") from None


def _leads_to(
    certificate: x509.Certificate, between: list[x509.Certificate], authorities: list[x509.Certificate]
) -> bool:
    for _ in range(LONGEST_CHAIN):
        if any(_issued(certificate, authority) for authority in authorities):
            return True
        issuer = next((each for each in between if each != certificate and _issued(certificate, each)), None)
        if issuer is None:
            return False
        certificate = issuer
    return False


def _issued(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True
