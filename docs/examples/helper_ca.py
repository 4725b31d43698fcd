#!/usr/bin/env python3
"""A helper that is a small certificate authority: it signs the server's CSR. For `features.pki`.

It needs Python 3.11 and its package `cryptography` (42 or later). Use it as

    helper: /opt/prov/helper_ca.py --ca /etc/choria-ca/ca.pem --key /etc/choria-ca/ca.key --domain example.net

The provisioner has already checked that the CSR is signed by its own key and asks for this server's name alone. A CA
checks it all the same: it must not depend on who calls it.
"""

import argparse
import datetime
import json
import sys
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID = datetime.timedelta(days=365)
CLOCK_SKEW = datetime.timedelta(minutes=5)


class Refused(Exception):
    """The server doesn't get a certificate now; the text says why."""


def sign(identity, pem, ca, key):
    """A certificate for this server: the name is ours to choose, only the public key is the request's."""
    request = x509.load_pem_x509_csr(pem.encode())
    if not request.is_signature_valid:
        raise Refused("the CSR is not signed by its own key")
    names = [name.value for name in request.subject]
    if names != [identity]:
        raise Refused(f"the CSR is for {names}, not for {identity}")
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, identity)]))
        .issuer_name(ca.subject)
        .public_key(request.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(min(now + VALID, ca.not_valid_after_utc))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(identity)]), critical=False)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
        )
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca.public_key()), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(request.public_key()), critical=False)
    )
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


def decide(server, options):
    """The answer about one server."""
    identity = server["identity"]
    if server["csr"] is None:
        raise Refused("there is no CSR: is features.pki on?")
    if not identity.endswith("." + options.domain):
        raise Refused(f"{identity} is not in {options.domain}")
    ca_pem = Path(options.ca).read_text()
    ca = x509.load_pem_x509_certificate(ca_pem.encode())
    key = serialization.load_pem_private_key(Path(options.key).read_bytes(), password=None)
    # The CSR reply says where the server keeps its key; the certificate goes beside it.
    ssldir = server["csr"]["ssldir"]
    return {
        "certificate": sign(identity, server["csr"]["csr"], ca, key),
        "ca": ca_pem,
        "ssldir": ssldir,
        "configuration": {
            "identity": identity,
            "plugin.choria.middleware_hosts": options.brokers,
            "plugin.choria.use_srv": "false",
            "plugin.choria.server.provision": "0",
            "plugin.security.provider": "file",
            "plugin.security.file.certificate": f"{ssldir}/certificate.pem",
            "plugin.security.file.key": f"{ssldir}/private.pem",
            "plugin.security.file.ca": f"{ssldir}/ca.pem",
        },
    }


def main():
    """Reads one server, writes one answer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ca", required=True, help="the CA's certificate, PEM")
    parser.add_argument("--key", required=True, help="the CA's private key, PEM, readable by the provisioner alone")
    parser.add_argument("--domain", required=True, help="only servers in this domain get a certificate")
    parser.add_argument("--brokers", default="nats://broker.example.net:4222", help="what the servers connect to")
    options = parser.parse_args()
    try:
        answer = decide(json.load(sys.stdin), options)
    except Refused as refused:
        answer = {"defer": True, "msg": str(refused), "reason": "not-signed"}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
