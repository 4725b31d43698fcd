"""Certificate signing requests: parsed within bounds, and refused unless they ask for the server's own name only.

Whatever a request asks for may end up in a certificate, and a certificate is a right. So this is a list of what is
let by; the rest is refused (wire-protocol 6.4, 14.1, 14.17; docs/security.md).
"""

import binascii
import re
import warnings
from base64 import b64decode
from collections.abc import Iterable, Sequence

import re2
from attrs import frozen
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

from provisioner.choria.encoding import shown
from provisioner.errors import ConfigError, Fault, TrustError
from provisioner.trust.keys import MIN_RSA_BITS
from provisioner.trust.pem import first_block

MAX_REQUEST = 16 * 1024
"""Characters of a request. A real one is about 1,000; with RSA 8192 and every subject field under 4,000."""

MAX_RSA_BITS = 8192
"""Longer RSA keys cost seconds to verify."""

MAX_NAME = 253
"""Characters of a name: the longest host name there is."""

_ONE_BLOCK = re.compile(
    r"\s*-----BEGIN CERTIFICATE REQUEST-----\r?\n([A-Za-z0-9+/=\r\n]+)-----END CERTIFICATE REQUEST-----\s*"
)
_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_])?")

_SUBJECT = frozenset(
    {
        NameOID.COMMON_NAME,
        NameOID.COUNTRY_NAME,
        NameOID.LOCALITY_NAME,
        NameOID.ORGANIZATION_NAME,
        NameOID.ORGANIZATIONAL_UNIT_NAME,
        NameOID.STATE_OR_PROVINCE_NAME,
    }
)
"""What Choria's own requests can hold in the subject (6.4)."""

_EXTENSION_REQUEST = ObjectIdentifier("1.2.840.113549.1.9.14")
_HASHES = (hashes.SHA256, hashes.SHA384, hashes.SHA512)
_CURVES = (ec.SECP256R1, ec.SECP384R1, ec.SECP521R1)
_PURPOSES = frozenset({ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH})

_LIBRARY_ERRORS = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
    x509.InvalidVersion,
)
"""What the library raises, lazily, for the parts of a request that it can't read."""


@frozen
class SigningRequest:
    """The facts of a request that has passed every check."""

    pem: str
    identity: str
    key: str
    """Kind and size of its key: ``RSA 2048``, ``secp256r1``, ``Ed25519``."""
    has_dns_name: bool
    """Whether the name is in the request as a DNS subject alternative name too."""


class DenyList:
    """Names for which no certificate is ever asked, as RE2 patterns: linear in time, and the syntax of the Go program.

    Args:
        patterns: each as written in the configuration; all slashes in front and behind are taken off.
        file: the configuration file, for messages.

    Raises:
        ConfigError: with every pattern that doesn't compile; a list with a hole in it denies nothing (14.17).
    """

    def __init__(self, patterns: Sequence[str], *, file: str = "", key: str = "cert_deny_list") -> None:
        options = re2.Options()
        options.log_errors = False
        faults: list[Fault] = []
        self._patterns: list[tuple[str, re2._Regexp]] = []
        for pattern in patterns:
            stripped = pattern.strip("/")
            if not stripped:
                faults.append(Fault(file, key, "an empty pattern would deny every name", found=pattern))
                continue
            try:
                self._patterns.append((pattern, re2.compile(stripped, options)))
            except re2.error as error:
                words = error.args[0].decode(errors="replace")
                faults.append(Fault(file, key, f"not a pattern of RE2 syntax: {words}", found=pattern))
        if faults:
            raise ConfigError(faults)

    def denies(self, name: str) -> str | None:
        """The first pattern that matches ``name``, as written, or None.

        Names of hosts compare without case and with or without a final dot, so all of these forms are tested.
        """
        name = name.encode(errors="replace").decode()
        plain = name.strip().rstrip(".")
        for form in dict.fromkeys((name, name.lower(), plain, plain.lower())):
            for pattern, compiled in self._patterns:
                if compiled.search(form):
                    return pattern
        return None


def verify_request(
    pem: str,
    identity: str,
    deny: DenyList,
    *,
    public_key: str | None = None,
    allowed_extensions: Iterable[str] = (),
) -> SigningRequest:
    """Checks a server's signing request whole.

    Args:
        pem: the request as the server sent it.
        identity: the server's name; the one common name, and each DNS name, must be exactly this.
        deny: names that are never asked for.
        public_key: the PEM that came with the request, to be compared with the key in it; None if none came.
        allowed_extensions: dotted OIDs of further extensions and attributes that the site lets by.
            Alternative names are checked all the same.

    Raises:
        TrustError: ``csr_malformed``, ``csr_bad_signature``, ``csr_wrong_name``, ``csr_denied`` or ``csr_extension``.
    """
    if len(pem) > MAX_REQUEST:
        raise TrustError("csr_malformed", f"the request is longer than {MAX_REQUEST} characters")
    found = _ONE_BLOCK.fullmatch(pem)
    if found is None:
        raise TrustError("csr_malformed", f"not one PEM block of a CERTIFICATE REQUEST, but {shown(pem[:40])}")
    try:
        request = x509.load_der_x509_csr(b64decode("".join(found[1].split()), validate=True))
        key = _key(request)
        _check_signature(request)
        _check_subject(request, identity, deny)
        has_dns_name = _check_extensions(request, identity, deny, frozenset(allowed_extensions))
        if public_key is not None:
            _check_same_key(request, public_key)
    except (*_LIBRARY_ERRORS, binascii.Error) as error:
        raise TrustError("csr_malformed", f"the request can't be read: {shown(str(error))}") from None
    return SigningRequest(pem=pem, identity=identity, key=key, has_dns_name=has_dns_name)


def _key(request: x509.CertificateSigningRequest) -> str:
    """Kind and size of the key; refused before anything is computed with it."""
    key = request.public_key()
    match key:
        case rsa.RSAPublicKey():
            exponent = key.public_numbers().e
            if MIN_RSA_BITS <= key.key_size <= MAX_RSA_BITS and 3 <= exponent < 1 << 32:
                return f"RSA {key.key_size}"
            raise TrustError(
                "csr_malformed",
                f"an RSA key of {key.key_size} bits (allowed are {MIN_RSA_BITS} to {MAX_RSA_BITS})"
                f" with an exponent of {exponent.bit_length()} bits (32)",
            )
        case ec.EllipticCurvePublicKey(curve=curve) if isinstance(curve, _CURVES):
            return curve.name
        case ed25519.Ed25519PublicKey():
            return "Ed25519"
        case _:
            raise TrustError(
                "csr_malformed", "the request's key is not RSA, Ed25519 or on a NIST curve of 256 bits or more"
            )


def _check_signature(request: x509.CertificateSigningRequest) -> None:
    digest = request.signature_hash_algorithm
    if digest is not None and not isinstance(digest, _HASHES):
        raise TrustError(
            "csr_bad_signature", f"the request is signed with {digest.name}; allowed are SHA-256, SHA-384 and SHA-512"
        )
    if not request.is_signature_valid:
        raise TrustError("csr_bad_signature", "the request is not signed by the key that is in it")


def _check_subject(request: x509.CertificateSigningRequest, identity: str, deny: DenyList) -> None:
    with warnings.catch_warnings():
        # The library only warns about lengths out of X.520; names longer than 64 are common and are bounded here.
        warnings.simplefilter("ignore")
        subject = list(request.subject)
    others = sorted({part.oid.dotted_string for part in subject if part.oid not in _SUBJECT})
    if others:
        raise TrustError("csr_wrong_name", f"the request's subject has a part that is not allowed: {', '.join(others)}")
    for value in (str(part.value) for part in subject):
        # "/O=x/CN=root": whoever reads a subject as one line of text must not find a second name in it.
        if "=" in value or not value.isprintable():
            raise TrustError("csr_wrong_name", f"the request's subject has {shown(value)}, which is no plain name")
    names = [part.value for part in subject if part.oid == NameOID.COMMON_NAME]
    if len(names) != 1:
        raise TrustError("csr_wrong_name", f"the request has {len(names)} common names: exactly one is allowed")
    _check_name(names[0], "common name", identity, deny)


def _check_name(name: str | bytes, kind: str, identity: str, deny: DenyList) -> None:
    if not isinstance(name, str) or len(name) > MAX_NAME or not _NAME.fullmatch(name.rstrip(".")):
        raise TrustError("csr_wrong_name", f"the request's {kind} {shown(str(name))} is not a name of a server")
    pattern = deny.denies(name)
    if pattern is not None:
        raise TrustError("csr_denied", f"the request's {kind} {shown(name)} is denied by cert_deny_list: {pattern}")
    if name != identity:
        raise TrustError("csr_wrong_name", f"the request's {kind} is {shown(name)}; the server is {shown(identity)}")


def _check_extensions(
    request: x509.CertificateSigningRequest, identity: str, deny: DenyList, allowed: frozenset[str]
) -> bool:
    """Checks attributes and requested extensions; True when the name is there as a DNS name too."""
    seen: set[ObjectIdentifier] = set()
    for attribute in request.attributes:
        # Twice the same, or another vendor's way to ask for extensions: what we look at isn't what a CA looks at.
        if attribute.oid in seen or (
            attribute.oid != _EXTENSION_REQUEST and attribute.oid.dotted_string not in allowed
        ):
            raise TrustError(
                "csr_extension", f"the request has an attribute that is not allowed: {_oid(attribute.oid)}"
            )
        seen.add(attribute.oid)
    has_dns_name = False
    for extension in request.extensions:
        match extension.value:
            case x509.SubjectAlternativeName() as names:
                has_dns_name = _check_alternative_names(names, identity, deny)
            case value if not _is_harmless(value) and extension.oid.dotted_string not in allowed:
                raise TrustError(
                    "csr_extension", f"the request asks for an extension that is not allowed: {_oid(extension.oid)}"
                )
    return has_dns_name


def _check_alternative_names(names: x509.SubjectAlternativeName, identity: str, deny: DenyList) -> bool:
    for name in names:
        if not isinstance(name, x509.DNSName):
            raise TrustError(
                "csr_wrong_name",
                f"the request has an alternative name of the kind {type(name).__name__}: {shown(str(name.value))}",
            )
        _check_name(name.value, "DNS name", identity, deny)
    return True


def _is_harmless(value: x509.ExtensionType) -> bool:
    """Whether an extension gives no more than any server's certificate has: no CA, TLS client and server only."""
    match value:
        case x509.BasicConstraints(ca=False):
            return True
        case x509.KeyUsage(key_cert_sign=False, crl_sign=False):
            return True
        case x509.ExtendedKeyUsage():
            return set(value) <= _PURPOSES
        case _:
            return False


def _check_same_key(request: x509.CertificateSigningRequest, public_key: str) -> None:
    """The key beside the request: PKIX, or PKCS#1 under the same label as the real servers send it (6.4)."""
    key = request.public_key()
    kinds = [serialization.PublicFormat.SubjectPublicKeyInfo]
    if isinstance(key, rsa.RSAPublicKey):
        kinds.append(serialization.PublicFormat.PKCS1)
    block = first_block(public_key) if len(public_key) <= MAX_REQUEST else None
    if block is None or block.body not in [key.public_bytes(serialization.Encoding.DER, kind) for kind in kinds]:
        raise TrustError("csr_malformed", "the public key beside the request is not the one in it")


def _oid(oid: ObjectIdentifier) -> str:
    return f"{oid._name} ({oid.dotted_string})"  # noqa: SLF001  # the library has no public word for it
