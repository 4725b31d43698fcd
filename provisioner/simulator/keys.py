"""Key material of a simulated site: who issues provisioning.jwt, and the keys that servers make for themselves.

Beside ``trust/`` and ``choria/security.py`` the one place that imports ``cryptography``: servers generate keys, which a
provisioner never does.
"""

from collections.abc import Mapping
from itertools import cycle
from typing import Any

from attrs import field, frozen
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.x509.oid import NameOID

from provisioner.trust import jws
from provisioner.trust.keys import SigningKey

RSA_BITS = 2048
POOL_SIZE = 4
"""RSA keys that a fleet shares: making one takes a tenth of a second, and nothing is guarded by them."""

_NAME_PARTS = {
    "C": NameOID.COUNTRY_NAME,
    "L": NameOID.LOCALITY_NAME,
    "O": NameOID.ORGANIZATION_NAME,
    "OU": NameOID.ORGANIZATIONAL_UNIT_NAME,
}


@frozen
class Issuer:
    """Signs provisioning.jwt, RS256 or EdDSA."""

    key: SigningKey = field(repr=False)

    def provisioning_token(self, claims: Mapping[str, Any]) -> str:
        """The token with these claims."""
        return jws.sign(claims, self.key)

    @property
    def verification_text(self) -> str:
        """What ``jwt_verify_cert`` needs: PEM for its file, or 64 hex digits that may stand there themselves."""
        if public := self.key.public_hex:
            return public
        encoded = self.key.key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        return encoded.decode("ascii")


def rsa_issuer() -> Issuer:
    """An issuer with a fresh RSA key."""
    return Issuer(SigningKey(generate_private_key(65537, RSA_BITS)))


def ed25519_issuer() -> Issuer:
    """An issuer with a fresh Ed25519 key."""
    return Issuer(SigningKey(Ed25519PrivateKey.generate()))


def provisioning_claims(
    token: str, *, now: int, version: int, validity: int = 365 * 86400, **more: Any
) -> dict[str, Any]:
    """The claims of a provisioning.jwt (wire-protocol 8.2).

    Args:
        token: what a provisioner must send to these servers.
        now: Unix seconds of issue.
        version: protocol version that the servers speak, 1 or 2.
        validity: seconds.
        more: further claims, or others in place of these.
    """
    claims: dict[str, Any] = {
        "cht": token,
        "chs": False,
        "chu": "nats://localhost:4222",
        "chpd": True,
        "extensions": None,
        "ou": "choria",
    }
    if version == 2:
        claims["v2"] = True
    claims |= {"update": True, "purpose": "choria_provisioning", "iss": "Choria Tokens Package"}
    claims |= {"sub": "choria_provisioning", "exp": now + validity, "nbf": now, "iat": now}
    return claims | more


@frozen
class Ed25519Pair:
    """A key pair that a server made on ``gen25519``. Keys are hex."""

    private: Ed25519PrivateKey = field(factory=Ed25519PrivateKey.generate, repr=False)

    @property
    def public(self) -> str:
        """64 hex digits."""
        return self.private.public_key().public_bytes_raw().hex()

    @property
    def seed(self) -> str:
        """64 hex digits, as they stand in ``server.seed``."""
        return self.private.private_bytes_raw().hex()

    def sign(self, text: str) -> str:
        """128 hex digits."""
        return self.private.sign(text.encode()).hex()


class RequestPool:
    """Makes real certificate signing requests with RSA keys taken in turn from a small pool."""

    def __init__(self, size: int = POOL_SIZE) -> None:
        self._size = size
        self._keys: list[RSAPrivateKey] = []
        self._turn = cycle(range(size))

    def request(self, common_name: str, parts: Mapping[str, str]) -> tuple[str, str, str]:
        """One request for a name.

        Args:
            common_name: the name.
            parts: values of ``C``, ``L``, ``O`` and ``OU``; empty ones are left out.

        Returns:
            the request, the public key as servers send it (PKCS#1 with the label ``PUBLIC KEY``), the private key; PEM.

        Raises:
            ValueError: one of them can't stand in a certificate.
        """
        if len(self._keys) < self._size:
            self._keys.append(generate_private_key(65537, RSA_BITS))
        key = self._keys[next(self._turn) % len(self._keys)]
        names = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
        names += [x509.NameAttribute(oid, parts[part]) for part, oid in _NAME_PARTS.items() if parts.get(part)]
        request = x509.CertificateSigningRequestBuilder(x509.Name(names)).sign(key, hashes.SHA256())
        pem = serialization.Encoding.PEM
        public = key.public_key().public_bytes(pem, serialization.PublicFormat.PKCS1).decode("ascii")
        private = key.private_bytes(
            pem, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        ).decode("ascii")
        return request.public_bytes(pem).decode("ascii"), public.replace("RSA PUBLIC KEY", "PUBLIC KEY"), private
