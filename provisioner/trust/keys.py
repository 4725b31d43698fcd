"""Keys from the operator's files and settings: what verifies tokens and what signs them (wire-protocol 7.4).

A key's kind decides the algorithms that are believed with it, never the token: see ``VerificationKey.algorithms``.
"""

import re
from pathlib import Path

from attrs import field, frozen
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey

from provisioner.errors import ConfigError, Fault
from provisioner.trust.pem import first_block

MAX_KEY_FILE = 64 * 1024
"""Bytes read of a key or token file. Real ones are under 10 KiB."""

MIN_RSA_BITS = 2048
"""Shorter RSA keys are within reach of an attacker with money; NIST SP 800-131A ended them in 2013."""

_HEX_32 = re.compile(r"[0-9a-fA-F]{64}")


@frozen
class VerificationKey:
    """A public key that tokens are verified with. ``algorithms`` are the JWS algorithms believed with it."""

    key: RSAPublicKey | Ed25519PublicKey = field(repr=False)

    @property
    def algorithms(self) -> tuple[str, ...]:
        """The JWS algorithms that count with this key."""
        return ("RS256", "RS384", "RS512") if isinstance(self.key, RSAPublicKey) else ("EdDSA",)

    @property
    def kind(self) -> str:
        """``RSA`` or ``Ed25519``, for messages."""
        return "RSA" if isinstance(self.key, RSAPublicKey) else "Ed25519"


@frozen
class SigningKey:
    """A private key that tokens are signed with. Never shown."""

    key: RSAPrivateKey | Ed25519PrivateKey = field(repr=False)

    @property
    def algorithm(self) -> str:
        """The JWS algorithm tokens are signed with."""
        return "RS256" if isinstance(self.key, RSAPrivateKey) else "EdDSA"

    @property
    def public(self) -> VerificationKey:
        """What tokens signed with this key are verified with."""
        return VerificationKey(self.key.public_key())

    @property
    def public_hex(self) -> str:
        """The Ed25519 public key as 64 hex characters; empty for RSA."""
        return "" if isinstance(self.key, RSAPrivateKey) else self.key.public_key().public_bytes_raw().hex()


def ed25519_verifier(public_hex: str) -> VerificationKey:
    """The key that 64 hex characters spell.

    Raises:
        ValueError: anything else than 32 bytes in hex.
    """
    return VerificationKey(Ed25519PublicKey.from_public_bytes(unhex(public_hex, 32)))


def unhex(text: str, length: int) -> bytes:
    """Decodes hex of exactly ``length`` bytes, of either case, without the blanks that ``bytes.fromhex`` lets by.

    Raises:
        ValueError: anything else.
    """
    if len(text) != 2 * length or not re.fullmatch("[0-9a-fA-F]*", text):
        raise ValueError(f"not {length} bytes in hexadecimal")
    return bytes.fromhex(text)


def load_verification_key(setting: str, *, name: str = "jwt_verify_cert") -> VerificationKey:
    """The key that provisioning tokens are verified with (wire-protocol 7.4, 8.2).

    Args:
        setting: 64 hex characters are an Ed25519 public key, always. Anything else is the path of a file that holds
            either those characters or PEM: a certificate or a public key (PKIX or PKCS#1), RSA or Ed25519.
        name: the configuration key, for messages.

    Raises:
        ConfigError: naming the file or the setting, and what was found.
    """
    setting = setting.strip()
    if not setting:
        raise _fault(setting, name, "no key is set, so no token can be verified: give a file or 64 hexadecimal digits")
    text = setting
    if not _HEX_32.fullmatch(setting):
        text = read_file(
            Path(setting), name, otherwise="; nor is the value an Ed25519 public key, which has 64 hexadecimal digits"
        )
    if _HEX_32.fullmatch(text):
        return ed25519_verifier(text)
    block = first_block(text)
    if block is None:
        raise _fault(setting, name, "holds neither a PEM certificate or public key nor 64 hexadecimal digits")
    key = _public_key(block.body)
    if not isinstance(key, RSAPublicKey | Ed25519PublicKey):
        raise _fault(setting, name, f"the PEM block {block.label!a} is not an RSA or Ed25519 public key or certificate")
    _check_size(key, setting, name)
    return VerificationKey(key)


def load_signing_key(path: Path, *, name: str = "jwt_signing_key") -> SigningKey:
    """The key that server tokens are signed with (wire-protocol 7.4).

    Args:
        path: PEM (``RSA PRIVATE KEY``, or ``PRIVATE KEY`` with RSA or Ed25519 in it), or an Ed25519 seed as 64
            hex characters. A final newline is no fault, other than in the Go program.
        name: the configuration key, for messages.

    Raises:
        ConfigError: naming the file and what is wrong with it, never its content.
    """
    text = read_file(path, name)
    if _HEX_32.fullmatch(text):
        return SigningKey(Ed25519PrivateKey.from_private_bytes(bytes.fromhex(text)))
    try:
        key = serialization.load_pem_private_key(text.encode(), password=None)
    except TypeError:
        raise _fault(str(path), name, "the private key is encrypted; it must be in the clear") from None
    except (ValueError, UnsupportedAlgorithm):
        raise _fault(str(path), name, "holds neither a PEM private key nor a seed of 64 hexadecimal digits") from None
    if not isinstance(key, RSAPrivateKey | Ed25519PrivateKey):
        raise _fault(str(path), name, "the private key is neither RSA nor Ed25519")
    _check_size(key, str(path), name)
    return SigningKey(key)


def read_file(path: Path, name: str, *, otherwise: str = "") -> str:
    """Reads one small text file whole, without blanks and newlines around it.

    Args:
        path: a regular file of at most ``MAX_KEY_FILE`` bytes.
        name: the configuration key it is named by.
        otherwise: added to the message when there is no such file.

    Raises:
        ConfigError: missing, unreadable, not a regular file, too big, or not text.
    """
    try:
        if not path.exists():
            raise _fault(str(path), name, f"there is no such file{otherwise}")
        if not path.is_file():
            raise _fault(str(path), name, "is not a regular file")
        with path.open("rb") as file:
            content = file.read(MAX_KEY_FILE + 1)
    except OSError as error:
        raise _fault(str(path), name, f"can't be read: {error.strerror}") from None
    if len(content) > MAX_KEY_FILE:
        raise _fault(str(path), name, f"is larger than {MAX_KEY_FILE} bytes")
    try:
        return content.decode().strip()
    except UnicodeDecodeError:
        raise _fault(str(path), name, "is not text") from None


def _public_key(body: bytes) -> object:
    """The public key of a PEM body: PKIX, PKCS#1 or a certificate, whatever its label says (as Go reads it)."""
    for load in (serialization.load_der_public_key, _certified_key):
        try:
            return load(body)
        except (ValueError, UnsupportedAlgorithm):
            continue
    return None


def _certified_key(body: bytes) -> object:
    return x509.load_der_x509_certificate(body).public_key()


def _check_size(key: object, file: str, name: str) -> None:
    if isinstance(key, RSAPublicKey | RSAPrivateKey) and key.key_size < MIN_RSA_BITS:
        raise _fault(file, name, f"an RSA key of {key.key_size} bits is too short: at least {MIN_RSA_BITS}")


def _fault(file: str, name: str, problem: str) -> ConfigError:
    return ConfigError([Fault(file=file, key=name, problem=problem)])
