"""Signing requests for the tests: made by the library, and by hand where no library would make them."""

import warnings
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import PublicFormat
from cryptography.x509.oid import NameOID

from provisioner.trust.pem import armour
from tests.pure.trust.material import CertificateKey, ed25519_key

ME = "n1.example.net"
CN = NameOID.COMMON_NAME
LABEL = "CERTIFICATE REQUEST"


def pem(thing: x509.CertificateSigningRequest | x509.Certificate) -> str:
    return thing.public_bytes(serialization.Encoding.PEM).decode()


def request(
    *names: x509.NameAttribute[str],
    key: CertificateKey | None = None,
    extensions: tuple[x509.ExtensionType, ...] = (),
    attributes: tuple[tuple[str, bytes], ...] = (),
    digest: hashes.HashAlgorithm | None = None,
) -> x509.CertificateSigningRequest:
    """A signing request; its key is Ed25519 unless another is given."""
    key = key or ed25519_key()
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(names))
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    for oid, value in attributes:
        builder = builder.add_attribute(x509.ObjectIdentifier(oid), value)
    kind: Any = None if isinstance(key, Ed25519PrivateKey) else (digest or hashes.SHA256())
    return builder.sign(key, kind)


def name(oid: x509.ObjectIdentifier, value: str) -> x509.NameAttribute[str]:
    """Any text as part of a name, of lengths too that the library warns about."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return x509.NameAttribute(oid, value, _validate=False)


def named(*extensions: x509.ExtensionType, **more: Any) -> str:
    return pem(request(name(CN, ME), extensions=extensions, **more))


def san(*names: x509.GeneralName) -> x509.SubjectAlternativeName:
    return x509.SubjectAlternativeName(names)


def key_usage(**flags: bool) -> x509.KeyUsage:
    kinds = "digital_signature content_commitment key_encipherment data_encipherment key_agreement key_cert_sign"
    return x509.KeyUsage(**dict.fromkeys([*kinds.split(), "crl_sign", "encipher_only", "decipher_only"], False) | flags)


# --- by hand: DER --------------------------------------------------------------------------------------------------


def tlv(tag: int, *contents: bytes) -> bytes:
    """One DER value."""
    body = b"".join(contents)
    length = len(body)
    size = (
        bytes([length])
        if length < 128
        else bytes([0x80 | (length.bit_length() + 7) // 8]) + length.to_bytes((length.bit_length() + 7) // 8, "big")
    )
    return bytes([tag]) + size + body


def _oid(dotted: str) -> bytes:
    first, second, *rest = map(int, dotted.split("."))
    content = bytearray([40 * first + second])
    for number in rest:
        digits = [number & 0x7F]
        while number := number >> 7:
            digits.insert(0, 0x80 | number & 0x7F)
        content += bytes(digits)
    return tlv(0x06, bytes(content))


def _raw(spki: bytes, *attributes: bytes) -> str:
    """A request that no library would make, signed with the Ed25519 key all the same."""
    subject = tlv(0x30, tlv(0x31, tlv(0x30, _oid("2.5.4.3"), tlv(0x0C, ME.encode()))))
    info = tlv(0x30, b"\x02\x01\x00", subject, spki, tlv(0xA0, *attributes))
    signature = tlv(0x03, b"\0" + ed25519_key().sign(info))
    return armour(LABEL, tlv(0x30, info, tlv(0x30, _oid("1.3.101.112")), signature))


def with_rsa_key(modulus: int, exponent: int) -> str:
    def integer(value: int) -> bytes:
        return tlv(0x02, value.to_bytes(value.bit_length() // 8 + 1, "big"))

    key = tlv(0x30, integer(modulus), integer(exponent))
    return _raw(tlv(0x30, tlv(0x30, _oid("1.2.840.113549.1.1.1"), b"\x05\x00"), tlv(0x03, b"\0", key)))


def with_attributes(*attributes: tuple[str, bytes]) -> str:
    spki = ed25519_key().public_key().public_bytes(serialization.Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return _raw(spki, *(tlv(0x30, _oid(oid), tlv(0x31, value)) for oid, value in attributes))


def asking(extension: x509.ExtensionType) -> bytes:
    return tlv(0x30, tlv(0x30, _oid(extension.oid.dotted_string), tlv(0x04, extension.public_bytes())))
