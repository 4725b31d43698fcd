"""What a certificate says of itself, unverified: for the audit trail and for an operator's check.

Nothing here decides whom to believe; that is ``tokens``, ``chain`` and ``request``.
"""

from datetime import UTC, datetime

from attrs import frozen
from cryptography import x509

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


def day(seconds: float) -> str:
    """A Unix time as a date for people, UTC; out of range it is ``never``."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (OverflowError, ValueError, OSError):
        return "never"
