"""What the tests of the NATS bus need: reloads, users with JWTs, certificates, servers that misbehave."""

import base64
import binascii
import datetime
import ipaddress
import json
import signal
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from nacl.signing import SigningKey

from provisioner.simulator.embedded import NatsServer


async def reload(server: NatsServer, config: str) -> None:
    """Gives a running server another configuration."""
    assert server.process is not None
    done = server.log_text().count("Reloaded server configuration")
    (server.directory / "nats.conf").write_text(config)
    server.process.send_signal(signal.SIGHUP)
    with trio.fail_after(20):
        while server.log_text().count("Reloaded server configuration") == done:
            await trio.sleep(0.02)


async def freeze(server: NatsServer) -> None:
    """Stops a server where it is; its sockets stay open."""
    assert server.process is not None
    server.process.send_signal(signal.SIGSTOP)
    tasks = Path(f"/proc/{server.process.pid}/task")
    with trio.fail_after(20):
        while not all((task / "stat").read_text().rpartition(")")[2].split()[0] == "T" for task in tasks.iterdir()):
            await trio.sleep(0.005)


# --- operator mode: users that show a JWT and sign a nonce --------------------------------------------------------


PREFIX = {"operator": 14 << 3, "account": 0, "user": 20 << 3}


class NKey:
    """An Ed25519 key in the encoding of NATS."""

    def __init__(self, kind: str) -> None:
        self.key = SigningKey.generate()
        self.kind = kind

    @property
    def public(self) -> str:
        raw = bytes([PREFIX[self.kind]]) + bytes(self.key.verify_key)
        return base64.b32encode(raw + binascii.crc_hqx(raw, 0).to_bytes(2, "little")).decode().rstrip("=")

    @property
    def seed(self) -> str:
        kind = PREFIX[self.kind]
        raw = bytes([(18 << 3) | (kind >> 5), (kind & 31) << 3]) + bytes(self.key)
        return base64.b32encode(raw + binascii.crc_hqx(raw, 0).to_bytes(2, "little")).decode().rstrip("=")

    def sign(self, message: bytes) -> bytes:
        return self.key.sign(message).signature

    def issue(self, subject: "NKey", nats: dict[str, object], expires: int = 0) -> str:
        """A JWT about ``subject``, valid for ``expires`` seconds (0: for ever)."""
        claims: dict[str, object] = {
            "jti": subject.public,
            "iat": int(time.time()),
            "iss": self.public,
            "sub": subject.public,
            "nats": {"type": subject.kind, "version": 2} | nats,
        }
        if expires:
            claims["exp"] = int(time.time()) + expires
        parts = [{"typ": "JWT", "alg": "ed25519-nkey"}, claims]
        signed = ".".join(_b64(json.dumps(part).encode()) for part in parts)
        return f"{signed}.{_b64(self.sign(signed.encode()))}"


def _b64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


class Operator:
    """An operator with one account, and users made on demand."""

    UNLIMITED = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1)

    def __init__(self) -> None:
        self.operator, self.account = NKey("operator"), NKey("account")

    @property
    def config(self) -> str:
        operator = self.operator.issue(self.operator, {})
        account = self.operator.issue(self.account, {"limits": self.UNLIMITED | {"wildcards": True}})
        return f"operator: {operator}\nresolver: MEMORY\nresolver_preload: {{ {self.account.public}: {account} }}\n"

    def user(self, key: NKey, expires: int = 0) -> str:
        return self.account.issue(key, {"subs": -1, "data": -1, "payload": -1}, expires)


# --- TLS -----------------------------------------------------------------------------------------------------------


class Authority:
    """A certificate authority, in files below a directory."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        self.directory = directory
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.ca = directory / f"{name}.pem"
        self.ca.write_bytes(_certificate(self.name, self.name, self.key, self.key, authority=True))

    def certify(self, common_name: str, *alternative: str) -> tuple[Path, Path]:
        """Certificate and key for a server or client; alternative names may be IP addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        certificate, private = self.directory / f"{common_name}.pem", self.directory / f"{common_name}.key"
        certificate.write_bytes(_certificate(subject, self.name, key, self.key, alternative))
        private.touch(mode=0o600)
        private.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return certificate, private

    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.ca)


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
    alternative: tuple[str, ...] = (),
    *,
    authority: bool = False,
) -> bytes:
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=2))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        # Python 3.13 is strict about these.
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if authority:
        usage = dict.fromkeys(
            ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only"), False
        )
        signs = x509.KeyUsage(digital_signature=True, key_cert_sign=True, crl_sign=True, decipher_only=False, **usage)
        builder = builder.add_extension(signs, critical=True)
    if alternative:
        names = [_name(name) for name in alternative]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def tls_config(certificate: Path, key: Path, ca: Path | None = None, *, verify: bool = False) -> str:
    """A ``tls`` block."""
    more = f'ca_file: "{ca}"\n verify: {str(verify).lower()}\n' if ca else ""
    return f'tls {{ cert_file: "{certificate}"\n key_file: "{key}"\n {more} }}\n'


# --- servers that misbehave ----------------------------------------------------------------------------------------

INFO = {"server_id": "x", "version": "2.11.0", "max_payload": 65536, "headers": True}


def info(**more: object) -> bytes:
    """An INFO line."""
    return b"INFO " + json.dumps(INFO | more).encode() + b"\r\n"


@asynccontextmanager
async def odd_server(serve: Callable[[trio.SocketStream], Awaitable[None]]) -> AsyncIterator[str]:
    """A server of our own; each connection is served by ``serve``, then closed. Yields its URL."""

    async def guarded(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):  # the client has left
            await serve(stream)

    async with trio.open_nursery() as nursery:
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, guarded, [listener])
        yield f"nats://127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


async def read_until(stream: trio.SocketStream, end: bytes) -> bytes:
    """Reads until ``end`` has come, or the peer is gone."""
    got = b""
    while end not in got:
        more = await stream.receive_some(65536)
        if not more:
            break
        got += more
    return got
