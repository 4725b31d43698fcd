"""What a certificate or token says of itself, unverified: for the audit trail and for an operator's check.

Nothing here decides whom to believe; that is ``tokens``, ``chain`` and ``request``.
"""

from datetime import UTC, datetime
from typing import Any

from attrs import field, frozen
from cryptography import x509

from provisioner.trust.jws import unverified_claims
from provisioner.trust.pem import first_block

CERTIFICATE = "CERTIFICATE"


@frozen
class CertificateFacts:
    """One certificate. Times are Unix seconds; ``serial`` is in lower-case hex; ``subject`` as RFC 4514 has it."""

    serial: str
    subject: str
    not_before: float
    not_after: float


def certificate_facts(pem: str) -> CertificateFacts:
    """The first certificate of a PEM text.

    Raises:
        ValueError: there is none.
    """
    block = first_block(pem)
    if block is None or block.label != CERTIFICATE:
        raise ValueError("holds no PEM certificate")
    try:
        certificate = x509.load_der_x509_certificate(block.body)
        subject = certificate.subject.rfc4514_string()
    except ValueError:
        raise ValueError("holds a PEM certificate that can't be decoded") from None
    return CertificateFacts(
        f"{certificate.serial_number:x}",
        subject,
        certificate.not_valid_before_utc.timestamp(),
        certificate.not_valid_after_utc.timestamp(),
    )


@frozen
class TokenFacts:
    """The claims of a token that matter to its owner. ``expires`` is Unix seconds, None for never."""

    expires: float | None
    permissions: dict[str, Any] = field(factory=dict)


def token_facts(token: str) -> TokenFacts:
    """What a token says.

    Raises:
        TrustError: it is no token.
    """
    claims = unverified_claims(token)
    expires = [claims[name] for name in ("exp", "issexp") if _is_time(claims.get(name))]
    permissions = claims.get("permissions")
    return TokenFacts(
        expires=min(expires, default=None),
        permissions=permissions if isinstance(permissions, dict) else {},
    )


def day(seconds: float) -> str:
    """A Unix time as a date for people, UTC; out of range it is ``never``."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (OverflowError, ValueError, OSError):
        return "never"


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 253402300800
