"""The files of one benchmark site, made beforehand: authority, certificates, tokens, helpers, configurations.

Keys are RSA with 2048 bits where protocol version 1 wants RSA. Those that Puppet makes have 4096.
"""

import base64
import datetime
import ipaddress
import json
import os
import sys
import time
from pathlib import Path
from typing import Literal

from attrs import frozen
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.x509.oid import NameOID

from provisioner.simulator.keys import Issuer, provisioning_claims, rsa_issuer

Transport = Literal["plain", "tls"]
Helper = Literal["sh", "python", "in-process", "stream"]

TOKEN = "s3cret"
ANSWER = {"configuration": {"identity": "x", "plugin.choria.server.provision": "0", "registerinterval": "300"}}
SH = f"#!/bin/sh\ncat >/dev/null\necho '{json.dumps(ANSWER)}'\n"
PYTHON = f"""#!{sys.executable}
import json, sys
server = json.load(sys.stdin)
json.dump({{"configuration": {{**{ANSWER["configuration"]!r}, "identity": server["identity"]}}}}, sys.stdout)
"""
STREAM = f"""#!{sys.executable}
import json, sys
for line in sys.stdin:
    server = json.loads(line)
    settings = {{**{ANSWER["configuration"]!r}, "identity": server["identity"]}}
    print(json.dumps({{"identity": server["identity"], "configuration": settings}}), flush=True)
"""
PROGRAMS: dict[Helper, str] = {"sh": SH, "python": PYTHON, "stream": STREAM, "in-process": SH}
STREAM_PROCESSES = 2


def _certificate(
    name: str, key: RSAPrivateKey, issuer: x509.Name, signer: RSAPrivateKey, *, authority: bool = False
) -> bytes:
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName(name), x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=2))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(signer, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM)


def _pem(key: RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


@frozen
class Site:
    """A directory with everything that a run needs. Made by ``make_site``."""

    directory: Path
    issuer: Issuer

    def path(self, name: str) -> Path:
        return self.directory / name

    def broker(self, transport: Transport) -> str:
        """The text of a nats-server configuration: mutual TLS, or nothing."""
        if transport == "plain":
            return ""
        return (
            f'tls {{ cert_file: "{self.path("broker.pem")}"\n key_file: "{self.path("broker.key")}"\n'
            f' ca_file: "{self.path("ca.pem")}"\n verify: true }}\n'
        )

    def provisioning_jwt(self, version: int) -> str:
        """What each server of the fleet has as its provisioning.jwt."""
        return self.issuer.provisioning_token(provisioning_claims(TOKEN, now=int(time.time()), version=version))

    def write_configuration(
        self,
        name: str,
        port: int,
        *,
        version: int,
        transport: Transport,
        helper: Helper,
        workers: int,
        signed: bool = True,
        **keys: object,
    ) -> tuple[Path, Path]:
        """The YAML and the choria.cfg of one run; ``keys`` are further ones of the YAML."""
        values: dict[str, object] = {
            "workers": workers,
            "interval": "5m",
            "token": TOKEN,
            "site": "benchmark",
            "helper": str(self.path(f"helper-{helper}")),
            "choria_insecure": transport == "plain" and not signed,
            "logfile": str(self.path(f"{name}.log")),
            "loglevel": "warn",
            "features": {"jwt": True},
            "jwt_verify_cert": str(self.path("signer.pem")),
        }
        if helper == "stream":
            values |= {"helper_mode": "stream", "helper_processes": STREAM_PROCESSES}
        yaml, choria = self.path(f"{name}.yaml"), self.path(f"{name}.cfg")
        yaml.write_text(json.dumps(values | keys))
        scheme = "tls" if transport == "tls" else "nats"
        lines = ["identity = provisioner.example.net"]
        lines += [f"plugin.choria.middleware_hosts = {scheme}://127.0.0.1:{port}", "plugin.choria.use_srv = false"]
        if version == 1:
            lines += ["plugin.security.provider = file"]
            lines += [f"plugin.security.file.certificate = {self.path('client.pem')}"]
            lines += [f"plugin.security.file.key = {self.path('client.key')}"]
            lines += [f"plugin.security.file.ca = {self.path('ca.pem')}"]
        else:
            lines += ["plugin.security.provider = choria"]
            lines += [f"plugin.security.choria.token_file = {self.path('client.jwt')}"]
            lines += [f"plugin.security.choria.seed_file = {self.path('client.seed')}"]
            lines += [f"plugin.security.choria.certificate = {self.path('client.pem')}"]
            lines += [f"plugin.security.choria.key = {self.path('client.key')}"]
            lines += [f"plugin.security.choria.ca = {self.path('ca.pem')}"]
        choria.write_text("\n".join(lines) + "\n")
        return yaml, choria


def make_site(directory: Path, *, bits: int = 2048) -> Site:
    """Makes all keys and programs below an empty directory. ``bits`` are those of the provisioner's key."""
    authority = generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ca")])
    (directory / "ca.pem").write_bytes(_certificate("ca", authority, name, authority, authority=True))
    for who, size in (("broker", 2048), ("client", bits)):
        key = generate_private_key(65537, size)
        (directory / f"{who}.pem").write_bytes(_certificate(f"{who}.example.net", key, name, authority))
        _private(directory / f"{who}.key", _pem(key))
    claims = {
        "purpose": "choria_client_id",
        "callerid": "choria=provisioner_signer",
        "ou": "choria",
        "permissions": {"provisioner": True},
        "exp": int(time.time()) + 86400,
    }
    # A Choria broker would look at its signature; a plain nats-server and the simulated servers don't.
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in (_HEADER, claims)]
    (directory / "client.jwt").write_text(".".join([*parts, "A" * 86]))
    _private(directory / "client.seed", b"02" * 32)
    issuer = rsa_issuer()
    (directory / "signer.pem").write_text(issuer.verification_text)
    for helper, text in PROGRAMS.items():
        path = directory / f"helper-{helper}"
        path.write_text(text)
        path.chmod(0o755)
    return Site(directory, issuer)


_HEADER = {"alg": "EdDSA", "typ": "JWT"}


def _private(path: Path, data: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
