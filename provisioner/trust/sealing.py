"""A private key from the helper, sealed so that only the one server can read it (wire-protocol 7.1, 7.2).

X25519 with a fresh key for each cycle, then PEM encryption as OpenSSL once did it: MD5 and all, as that is what
servers read. The secret is 256 random bits, so the weak derivation gives nothing away.
"""

import hashlib
import re
import secrets
from collections.abc import Callable

from attrs import field, frozen
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import padding, serialization
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from provisioner.errors import TrustError
from provisioner.secret import Secret
from provisioner.trust.keys import MIN_RSA_BITS, unhex
from provisioner.trust.pem import armour, first_block

LABEL = "RSA PRIVATE KEY"
"""What a server writes every key as, whatever is in it; hence only RSA in PKCS#1 is any use to it."""

MAX_KEY = 16 * 1024
"""Characters of a private key. RSA 8192 has 6,400."""

_DEK_INFO = re.compile(r"^DEK-Info: AES-256-CBC,([0-9a-fA-F]{32})$", re.MULTILINE)


@frozen
class Sealed:
    """A sealed private key and what its server needs to open it: the inputs ``key`` and ``ecdh_public`` (6.5)."""

    key: str = field(repr=False)
    ecdh_public: str


@frozen
class ExchangeKey:
    """One side's X25519 key pair, for one exchange."""

    private: X25519PrivateKey = field(factory=X25519PrivateKey.generate, repr=False)

    @property
    def public(self) -> str:
        """64 hex characters."""
        return self.private.public_key().public_bytes_raw().hex()

    def shared(self, other_public: str) -> bytes:
        """The 32 bytes that both sides compute.

        Args:
            other_public: the other side's public key, 64 hex characters.

        Raises:
            ValueError: not a key, or a point of low order, with which everybody would know the result.
        """
        return self.private.exchange(X25519PublicKey.from_public_bytes(unhex(other_public, 32)))


def seal_private_key(
    pem: Secret,
    server_public: str,
    *,
    own: ExchangeKey | None = None,
    entropy: Callable[[int], bytes] = secrets.token_bytes,
) -> Sealed:
    """Seals the helper's private key for one server.

    Args:
        pem: the key; its first PEM block counts. RSA in PKCS#1, or in PKCS#8, which is converted.
        server_public: ``ecdh_public`` of this cycle's ``jwt`` reply, 64 hex characters.
        own: our side of the exchange; a fresh one unless a test wants to know it.
        entropy: gives so many random bytes.

    Raises:
        TrustError: ``seal_failed``: no key exchange, a bad point, or a private key that the server couldn't use.
            Nothing of the key is in the message.
    """
    if not server_public:
        raise TrustError(
            "seal_failed",
            "the helper gave a private key, but the server did not start a key exchange: features.jwt must be on",
        )
    body = _usable(pem.reveal())
    own = own or ExchangeKey()
    try:
        shared = own.shared(server_public)
    except ValueError:
        raise TrustError("seal_failed", "the server's key for the exchange (ecdh_public) is not a good one") from None
    return Sealed(key=encrypt(body, shared, entropy(16)), ecdh_public=own.public)


def unseal(sealed: str, own: ExchangeKey, other_public: str) -> Secret:
    """Opens a sealed key, as a server does.

    Args:
        sealed: the encrypted PEM.
        own: the server's side of the exchange.
        other_public: the provisioner's ``ecdh_public``.

    Returns:
        The key as PEM, ``RSA PRIVATE KEY``, not encrypted.

    Raises:
        TrustError: ``seal_failed``.
    """
    try:
        return Secret(armour(LABEL, decrypt(sealed, own.shared(other_public))))
    except ValueError as error:
        raise TrustError("seal_failed", f"could not decrypt private key: {error}") from None


def encrypt(body: bytes, shared: bytes, iv: bytes) -> str:
    """Encrypts a PEM body (7.2).

    Args:
        body: what is to be hidden.
        shared: 32 bytes, the password as it stands.
        iv: 16 random bytes; the first 8 are the salt as well.
    """
    padder = padding.PKCS7(128).padder()
    padded = padder.update(body) + padder.finalize()
    cipher = Cipher(algorithms.AES(derive(shared, iv)), modes.CBC(iv)).encryptor()
    headers = ("Proc-Type: 4,ENCRYPTED", f"DEK-Info: AES-256-CBC,{iv.hex()}")
    return armour(LABEL, cipher.update(padded) + cipher.finalize(), headers)


def decrypt(pem: str, shared: bytes) -> bytes:
    """The reverse of ``encrypt``.

    Raises:
        ValueError: not such a PEM, or not for this secret.
    """
    block, info = first_block(pem), _DEK_INFO.search(pem)
    if block is None:
        raise ValueError("bad key received")
    if info is None:
        raise ValueError("key is not encrypted")
    iv = bytes.fromhex(info[1])
    cipher = Cipher(algorithms.AES(derive(shared, iv)), modes.CBC(iv)).decryptor()
    unpadder = padding.PKCS7(128).unpadder()
    return unpadder.update(cipher.update(block.body) + cipher.finalize()) + unpadder.finalize()


def derive(shared: bytes, iv: bytes) -> bytes:
    """The AES-256 key: OpenSSL's EVP_BytesToKey with MD5 and one round (7.2)."""
    salt = iv[:8]
    first = hashlib.md5(shared + salt, usedforsecurity=False).digest()
    return first + hashlib.md5(first + shared + salt, usedforsecurity=False).digest()


def _usable(pem: str) -> bytes:
    """The PKCS#1 body of the first PEM block, if a server can use it."""
    block = first_block(pem) if len(pem) <= MAX_KEY else None
    if block is None:
        raise TrustError("seal_failed", f"the helper's key is not PEM of at most {MAX_KEY} characters")
    if block.has_headers or block.label == "ENCRYPTED PRIVATE KEY":
        raise TrustError("seal_failed", "the helper's key is encrypted; it must be in the clear, it is sealed here")
    if block.label not in {LABEL, "PRIVATE KEY"}:
        raise TrustError(
            "seal_failed", f"the helper's key is {block.label!a}; a server can only use an {LABEL}, or PKCS#8 with one"
        )
    try:
        key = serialization.load_der_private_key(block.body, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise TrustError("seal_failed", "the helper's key is not a whole private key") from None
    if not isinstance(key, RSAPrivateKey) or key.key_size < MIN_RSA_BITS:
        raise TrustError("seal_failed", f"the helper's key is not RSA of at least {MIN_RSA_BITS} bits")
    return key.private_bytes(
        serialization.Encoding.DER, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
