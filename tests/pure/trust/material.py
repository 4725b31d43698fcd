"""Keys, tokens and requests for the tests of what is trusted: the recordings' and freshly made ones."""

import base64
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key as generate_rsa

from provisioner.errors import ProvisionerError
from provisioner.trust.keys import SigningKey, VerificationKey, load_signing_key, load_verification_key

FIXTURES = Path(__file__).parents[2] / "fixtures"
KEYS = FIXTURES / "keys"

RECORDED = 1795959209
"""Unix seconds of the recordings: their tokens are verified at that time."""

CertificateKey = RSAPrivateKey | EllipticCurvePrivateKey | Ed25519PrivateKey


def reason_of(call: Callable[[], object]) -> str:
    """The reason word that a call is refused with, or ``accepted``. Anything but our own errors passes through."""
    try:
        call()
    except ProvisionerError as error:
        return error.reason
    return "accepted"


def recorded_inputs(version: str) -> list[tuple[str, dict[str, Any]]]:
    """What the reference wrote to the helper: each line as it is, and decoded."""
    lines = (FIXTURES / f"helper-input-{version}.jsonl").read_text().splitlines()
    return [(line, json.loads(line)) for line in lines]


def recorded_token(name: str) -> str:
    return (KEYS / f"{name}.jwt").read_text()


@cache
def rsa_verifier() -> VerificationKey:
    return load_verification_key(str(KEYS / "jwt-signer-rsa.pem"))


@cache
def rsa_signer() -> SigningKey:
    return load_signing_key(KEYS / "jwt-signer-rsa.key")


@cache
def organization() -> SigningKey:
    return load_signing_key(KEYS / "issuer.seed")


def seeded(byte: int) -> SigningKey:
    """The Ed25519 key whose seed is one byte 32 times, as in the specification's examples."""
    return SigningKey(Ed25519PrivateKey.from_private_bytes(bytes([byte]) * 32))


def payload_of(token: str) -> dict[str, Any]:
    part = token.split(".")[1]
    return json.loads(base64.urlsafe_b64decode(part + "=="))  # type: ignore[no-any-return]


def segment(content: bytes | str) -> str:
    data = content.encode() if isinstance(content, str) else content
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


@cache
def rsa_key(bits: int = 2048, exponent: int = 65537) -> RSAPrivateKey:
    return generate_rsa(exponent, bits)


@cache
def ec_key() -> EllipticCurvePrivateKey:
    return generate_private_key(SECP256R1())


@cache
def ed25519_key() -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(b"k" * 32)


def private_pem(key: CertificateKey, kind: serialization.PrivateFormat, password: bytes | None = None) -> str:
    hiding = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, kind, hiding).decode()


def public_pem(key: CertificateKey, kind: serialization.PublicFormat) -> str:
    return key.public_key().public_bytes(serialization.Encoding.PEM, kind).decode()


# --- a provisioning token of our own --------------------------------------------------------------------------------

NOW = 1_800_000_000
SIGNER = seeded(7)
VERIFIER = SIGNER.public
GOOD: dict[str, Any] = {
    "cht": "s3cret",
    "chs": True,
    "chu": "nats://broker:4222",
    "chpd": True,
    "extensions": None,
    "purpose": "choria_provisioning",
    "iss": "us",
    "sub": "choria_provisioning",
    "exp": NOW + 1000,
    "nbf": NOW - 1000,
    "iat": NOW - 1000,
    "jti": "1",
}


def signed(header: str, payload: str, key: SigningKey = SIGNER) -> str:
    """A token with any header and payload, and a good Ed25519 signature over just that."""
    text = f"{segment(header)}.{segment(payload)}"
    assert isinstance(key.key, Ed25519PrivateKey)
    return f"{text}.{segment(key.key.sign(text.encode()))}"
