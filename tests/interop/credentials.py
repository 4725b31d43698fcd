"""Certificates, keys and tokens for real Choria, made anew for each run and written where Choria reads them.

Written from the wire protocol alone and sharing no code with the product, so that the two check each other.
"""

import datetime
import ipaddress
import secrets
import time
from pathlib import Path

import jwt
from attrs import frozen
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = datetime.timedelta(days=1)
YEAR = 365 * 86400
KSUID_EPOCH = 1_400_000_000
BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def ksuid(at: int) -> str:
    """A KSUID of the second ``at`` (Unix time), 27 characters."""
    number = int.from_bytes((at - KSUID_EPOCH).to_bytes(4, "big") + secrets.token_bytes(16), "big")
    text = ""
    for _ in range(27):
        number, digit = divmod(number, 62)
        text = BASE62[digit] + text
    return text


def key_pem(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> str:
    """The private key in the traditional format, which is what Choria's own PEM reader knows (``RSA PRIVATE KEY``)."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    ).decode()


def cert_pem(certificate: x509.Certificate) -> str:
    """The certificate as PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


class Authority:
    """An x509 certificate authority in one directory: ``ca.pem``, ``ca.key`` and what it issued."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "interop test CA")])
        self.certificate = (
            self._builder(self.name, self.key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_key_usage(sign_certificates=True), critical=True)
            .sign(self.key, hashes.SHA256())
        )
        self.ca = directory / "ca.pem"
        self.ca.write_text(cert_pem(self.certificate))
        (directory / "ca.key").write_text(key_pem(self.key))

    def issue(self, name: str, *, hosts: tuple[str, ...] = ()) -> tuple[Path, Path]:
        """Writes ``<name>.pem`` and ``<name>.key`` (RSA, as protocol version 1 signs with RSA); returns both paths."""
        key = rsa.generate_private_key(65537, 2048)
        certificate, private = self.directory / f"{name}.pem", self.directory / f"{name}.key"
        certificate.write_text(self.sign(name, key.public_key(), hosts=hosts))
        private.write_text(key_pem(key))
        private.chmod(0o600)
        return certificate, private

    def sign_request(self, name: str, request: str) -> str:
        """A certificate (PEM) for the key of a certificate signing request (PEM)."""
        key = x509.load_pem_x509_csr(request.encode()).public_key()
        assert isinstance(key, rsa.RSAPublicKey)
        return self.sign(name, key)

    def sign(self, name: str, public_key: rsa.RSAPublicKey, *, hosts: tuple[str, ...] = ()) -> str:
        """A certificate (PEM) for a client and server called ``name``."""
        names: list[x509.GeneralName] = [x509.DNSName(name)]
        for host in hosts:
            try:
                names.append(x509.IPAddress(ipaddress.ip_address(host)))
            except ValueError:
                names.append(x509.DNSName(host))
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        return cert_pem(
            self._builder(subject, public_key)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(sign_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .sign(self.key, hashes.SHA256())
        )

    def _builder(
        self, subject: x509.Name, public_key: rsa.RSAPublicKey | ec.EllipticCurvePublicKey
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - DAY)
            .not_valid_after(now + 30 * DAY)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
        )


def _key_usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=not sign_certificates,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        encipher_only=False,
        decipher_only=False,
    )


@frozen
class Login:
    """An Ed25519 identity on disk: ``<name>.jwt`` and ``<name>.seed`` (64 hex characters, no newline)."""

    token: Path
    seed: Path


class Issuer:
    """An Organization Issuer: the Ed25519 key at the root of a deployment without certificate authority."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.key = Ed25519PrivateKey.generate()
        self.public = self.key.public_key().public_bytes_raw().hex()

    def provisioner(self, callerid: str, *, may_provision: bool = True) -> Login:
        """A provisioner's client token: permission ``provisioner``, and a chain issuer that can sign server tokens."""
        key = Ed25519PrivateKey.generate()
        public, claims = key.public_key().public_bytes_raw().hex(), _standard("choria_client_id")
        claims |= {
            "callerid": callerid,
            "ou": "choria",
            "permissions": {"provisioner": may_provision, "fleet_management": True},
            "public_key": public,
            "iss": f"I-{self.public}",
            "tcs": self.key.sign(f"{claims['jti']}.{public}".encode()).hex(),
        }
        return self._write(callerid, claims, key)

    def server(self, identity: str) -> Login:
        """A server's login, signed by the issuer itself: what a broker logs in to its own network with."""
        key = Ed25519PrivateKey.generate()
        claims = _server(identity, key.public_key().public_bytes_raw().hex())
        return self._write(identity, claims, key)

    def server_token(self, identity: str, public_key: str) -> str:
        """A server token for a key that the server keeps to itself, signed by the issuer itself."""
        return jwt.encode(_server(identity, public_key), self.key, "EdDSA")

    def provisioning(self, claims: dict[str, object]) -> str:
        """A provisioning.jwt for protocol version 2, signed by the issuer (EdDSA)."""
        return jwt.encode(_provisioning() | {"v2": True} | claims, self.key, "EdDSA")

    def _write(self, name: str, claims: dict[str, object], key: Ed25519PrivateKey) -> Login:
        login = Login(self.directory / f"{name}.jwt", self.directory / f"{name}.seed")
        login.token.write_text(jwt.encode(claims, self.key, "EdDSA"))
        login.seed.write_text(key.private_bytes_raw().hex())
        login.seed.chmod(0o600)
        return login


class ProvisioningSigner:
    """The RSA key that signs provisioning.jwt where there is no Organization Issuer."""

    def __init__(self, directory: Path) -> None:
        self.key = rsa.generate_private_key(65537, 2048)
        self.public = directory / "provisioning-signer.pem"
        self.public.write_bytes(
            self.key.public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
        )

    def provisioning(self, claims: dict[str, object]) -> str:
        """A provisioning.jwt for protocol version 1 (RS256)."""
        return jwt.encode(_provisioning() | claims, self.key, "RS256")


def _provisioning() -> dict[str, object]:
    return _standard("choria_provisioning") | {
        "sub": "choria_provisioning",
        "chs": False,
        "chpd": True,
        "extensions": {"site": "interop"},
        "ou": "choria",
    }


def _server(identity: str, public_key: str) -> dict[str, object]:
    return _standard("choria_server") | {
        "identity": identity,
        "collectives": ["choria"],
        "ou": "choria",
        "public_key": public_key,
    }


def _standard(purpose: str) -> dict[str, object]:
    now = int(time.time())
    return {
        "purpose": purpose,
        "iss": "interop tests",
        "iat": now,
        "nbf": now - 60,
        "exp": now + YEAR,
        "jti": ksuid(now),
    }
