"""Who we are and how we sign: caller ids, RSA with a certificate (version 1), Ed25519 with a JWT (version 2).

Keys are parsed once, when a signer is made. Files are read by whoever calls: this room does no I/O.
"""

import base64
import re
from typing import Any, Protocol, final

from attrs import frozen
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509 import load_pem_x509_certificate
from nacl.exceptions import BadSignatureError
from nacl.signing import SigningKey, VerifyKey

from provisioner import strictjson
from provisioner.choria.encoding import b64
from provisioner.secret import Secret

CERTNAME_SUFFIX = "mcollective"
"""A build constant of Choria's own programs (wire-protocol 3.5)."""
CLIENT_PURPOSE = "choria_client_id"

_SEED = re.compile(r"[0-9a-fA-F]{64}")


class Signer(Protocol):
    """Signs requests for one caller."""

    @property
    def credential(self) -> str:
        """What goes along with each signature: certificate PEM (1) or JWT (2), whole file content."""
        ...

    def sign(self, message: bytes) -> str:
        """The signature over ``message`` as the secure layer carries it."""
        ...


@frozen
class _Insecure:
    """No protocol security (``choria_insecure``): the literal that version 1 servers accept then (3.3)."""

    credential: str = "insecure"

    def sign(self, message: bytes) -> str:  # noqa: ARG002 - the seam's signature
        """The literal ``insecure``."""
        return "insecure"


INSECURE: Signer = _Insecure()


@final
class CertificateSigner:
    """RSA PKCS#1 v1.5 with SHA-256, for version 1 (wire-protocol 3.3).

    Args:
        certificate: the whole certificate file; it travels as it stands.
        key: PEM of the RSA private key, PKCS#1 or PKCS#8, not encrypted.

    Raises:
        ValueError: one can't be parsed, is not RSA, or they don't belong together.
    """

    def __init__(self, certificate: str, key: Secret) -> None:
        self.credential = certificate
        try:
            private = serialization.load_pem_private_key(key.reveal().encode(), password=None)
        except (ValueError, TypeError):
            raise ValueError("the private key can't be read: an unencrypted PEM file is wanted") from None
        if not isinstance(private, rsa.RSAPrivateKey):
            raise ValueError("the private key is no RSA key, which version 1 needs to sign")  # noqa: TRY004
        try:
            public = load_pem_x509_certificate(certificate.encode()).public_key()
        except ValueError:
            raise ValueError("the certificate can't be read: a PEM file is wanted") from None
        if public != private.public_key():
            raise ValueError("the private key does not belong to the certificate")
        self._key = private

    def sign(self, message: bytes) -> str:
        """Base64 of the signature."""
        return b64(self._key.sign(message, padding.PKCS1v15(), hashes.SHA256()))


@final
class SeedSigner:
    """Ed25519, for version 2 (wire-protocol 4.3).

    Args:
        token: raw content of the JWT file: it travels as it stands, not trimmed.
        seed: content of the seed file: 64 hex digits and nothing else (7.4).

    Raises:
        ValueError: the seed is something else, or not the one of the token's ``public_key``.
    """

    def __init__(self, token: str, seed: Secret) -> None:
        self.credential = token
        self._key = SigningKey(parse_seed(seed))
        claimed = token_claims(token).get("public_key")
        if claimed and claimed != self._key.verify_key.encode().hex():
            raise ValueError("the seed does not belong to the token: its public_key is another one")

    def sign(self, message: bytes) -> str:
        """Base64 of the 64-byte signature."""
        return b64(self._key.sign(message).signature)


def parse_seed(seed: Secret) -> bytes:
    """The 32 bytes of an Ed25519 seed file (7.4).

    Raises:
        ValueError: it is not exactly 64 hex digits; a line end is already too much.
    """
    if not _SEED.fullmatch(seed.reveal()):
        raise ValueError(
            f"not an Ed25519 seed: 64 hex digits without a line end are wanted, {len(seed.reveal())} characters found"
        )
    return bytes.fromhex(seed.reveal())


def sign_nonce(seed: Secret, nonce: str) -> str:
    """What a JWT connection to a broker sends as ``sig``: the signed INFO nonce text, URL base64 unpadded (1.5).

    Raises:
        ValueError: the seed is none.
    """
    signature = SigningKey(parse_seed(seed)).sign(nonce.encode()).signature
    return base64.urlsafe_b64encode(signature).rstrip(b"=").decode("ascii")


def verify_certificate_signature(message: bytes, signature: str, certificate: str) -> bool:
    """Whether a version 1 request was signed by the key of the certificate sent with it.

    It says nothing about whether the certificate is to be trusted. Never raises: what can't be read doesn't verify.
    """
    try:
        key = load_pem_x509_certificate(certificate.encode()).public_key()
        if not isinstance(key, rsa.RSAPublicKey):
            return False
        key.verify(base64.b64decode(signature, validate=True), message, padding.PKCS1v15(), hashes.SHA256())
    except (ValueError, InvalidSignature):
        return False
    return True


def verify_seed_signature(message: bytes, signature: bytes, public_key: str) -> bool:
    """Whether a version 2 request was signed by the key with these 64 hex digits. Never raises."""
    try:
        VerifyKey(bytes.fromhex(public_key)).verify(message, signature)
    except (ValueError, BadSignatureError):
        return False
    return True


def token_claims(token: str) -> dict[str, Any]:
    """The claims of a JWT, **not verified**: for reading our own token, never a stranger's.

    Raises:
        ValueError: it is not a JWT.
    """
    parts = token.strip().split(".")
    if len(parts) != 3:
        raise ValueError("not a JWT: three parts with dots between them are wanted")
    try:
        claims = strictjson.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except ValueError:
        raise ValueError("not a JWT: its claims can't be read") from None
    if not isinstance(claims, dict):
        raise ValueError("not a JWT: its claims are no JSON object")  # noqa: TRY004 - text, not a type
    return claims


def caller_of_token(token: str) -> str:
    """The caller id of a client token: its ``callerid`` claim as it stands (3.5).

    Raises:
        ValueError: no JWT, of another purpose than ``choria_client_id``, or without caller id.
    """
    claims = token_claims(token)
    if claims.get("purpose") != CLIENT_PURPOSE:
        raise ValueError(f"the token is no client token: its purpose is {str(claims.get('purpose'))[:50]!a}")
    caller = claims.get("callerid")
    if not isinstance(caller, str) or not caller:
        raise ValueError("the token has no callerid")
    return caller


def certname(provider: str, *, identity: str, override: str, euid: int, user: str, passwd_name: str) -> str:
    """The name that stands for us where there is no token (3.5).

    Args:
        provider: ``plugin.security.provider``.
        identity: the configured identity.
        override: environment ``MCOLLECTIVE_CERTNAME``, or ``""``.
        euid: effective user id of this process.
        user: environment ``USER``, or ``""``: a service manager may not set it, which is no error here.
        passwd_name: the name of ``euid`` in the password database, or ``""``; used when ``user`` is empty.

    Returns:
        such as ``choria.mcollective``; the identity where nothing better is known.
    """
    name = user or passwd_name
    if provider == "choria":
        return name or identity
    if override:
        return override
    if name and (provider == "puppet" or euid != 0):
        return f"{name}.{CERTNAME_SUFFIX}"
    return identity


def caller_of_certname(name: str) -> str:
    """The caller id of a certificate name: ``choria=<name>``."""
    return f"choria={name}"
