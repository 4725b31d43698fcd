"""The site's helper of these tests: a program of its own, as a site would write it. Not imported by any test.

What to do comes with the server, in its facts: ``settings`` (the configuration to give), ``do`` (``defer``,
``shutdown``, ``key``, ``slow`` or ``upgrade``). Usage: ``site_helper.py STATE CA-DIRECTORY``. In STATE it leaves what
the tests look at: its input, its own ``/proc`` entries, the private keys it made.
"""

import datetime
import json
import sys
import time
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa


def main() -> None:
    state, authority = Path(sys.argv[1]), Path(sys.argv[2])
    text = sys.stdin.read()
    given = json.loads(text)
    identity = given["identity"]
    facts = json.loads(given["inventory"])["facts"]
    for name in ("cmdline", "environ"):
        (state / f"{identity}.{name}").write_bytes(Path(f"/proc/self/{name}").read_bytes())
    runs = state / f"{identity}.inputs"
    seen = runs.read_text() if runs.exists() else ""
    runs.write_text(seen + text + "\n")
    print(json.dumps(decide(given, facts, first=not seen, state=state, authority=authority)))


def decide(
    given: dict[str, Any], facts: dict[str, Any], *, first: bool, state: Path, authority: Path
) -> dict[str, Any]:
    identity, do = given["identity"], facts.get("do")
    if do == "slow":
        time.sleep(8)
    if do == "shutdown":
        return {"shutdown": True, "msg": "this one is not wanted"}
    if do == "defer" and first:
        return {"defer": True, "msg": "not before its owner is known"}
    reply: dict[str, Any] = {"configuration": facts["settings"]}
    if do == "upgrade":
        reply["upgrade"] = "99.0.0"
    if given["csr"]:
        request = x509.load_pem_x509_csr(given["csr"]["csr"].encode())
        public_key = request.public_key()
        if do == "key":
            key = rsa.generate_private_key(65537, 2048)
            public_key = key.public_key()
            reply["key"] = key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
            ).decode()
            (state / f"{identity}.key").write_text(reply["key"])
        reply["certificate"] = sign(identity, public_key, authority)
        reply["ca"] = (authority / "ca.pem").read_text()
        reply["ssldir"] = given["csr"]["ssldir"]
    return reply


def sign(identity: str, public_key: Any, authority: Path) -> str:
    ca = x509.load_pem_x509_certificate((authority / "ca.pem").read_bytes())
    key = serialization.load_pem_private_key((authority / "ca.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, identity)]))
        .issuer_name(ca.subject)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=30))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(identity)]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca.public_key()), critical=False)  # type: ignore[arg-type]
        .add_extension(
            x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH, x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


if __name__ == "__main__":
    main()
