"""Signing requests: what real servers send is taken, and nothing that asks for more than the server's own name."""

from collections.abc import Callable
from functools import partial
from ipaddress import IPv4Address
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed448, padding, rsa
from cryptography.hazmat.primitives.serialization import PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from provisioner.errors import TrustError
from provisioner.trust.pem import armour
from provisioner.trust.request import MAX_REQUEST, DenyList, SigningRequest, verify_request
from tests.pure.trust.material import (
    KEYS,
    CertificateKey,
    ec_key,
    ed25519_key,
    public_pem,
    reason_of,
    recorded_inputs,
    rsa_key,
)
from tests.pure.trust.requests import (
    CN,
    LABEL,
    ME,
    asking,
    key_usage,
    name,
    named,
    pem,
    request,
    san,
    tlv,
    with_attributes,
    with_rsa_key,
)

DENY = DenyList([r"\.privileged.mcollective$", r"\.privileged.choria$", r"\.mcollective$", r"\.choria$"])


def verify(text: str, identity: str = ME, **more: Any) -> SigningRequest:
    return verify_request(text, identity, DENY, **more)


def refused(text: str, identity: str = ME, **more: Any) -> TrustError:
    with pytest.raises(TrustError) as caught:
        verify(text, identity, **more)
    return caught.value


class TestTaken:
    def test_what_real_servers_sent(self) -> None:
        for _, told in recorded_inputs("v1"):
            sent = told["csr"]
            taken = verify(sent["csr"], told["identity"], public_key=sent["public_key"])
            assert taken == SigningRequest(sent["csr"], told["identity"], "RSA 2048", has_dns_name=False)

    @pytest.mark.parametrize(
        ("key", "kind"), [(rsa_key(), "RSA 2048"), (ec_key(), "secp256r1"), (ed25519_key(), "Ed25519")]
    )
    def test_each_kind_of_key_with_and_without_the_name_as_dns_name(self, key: CertificateKey, kind: str) -> None:
        for extensions, has_dns_name in (((), False), ((san(x509.DNSName(ME)),), True)):
            taken = verify(named(*extensions, key=key), public_key=public_pem(key, PublicFormat.SubjectPublicKeyInfo))
            assert (taken.key, taken.has_dns_name) == (kind, has_dns_name)

    def test_the_subject_fields_that_the_agent_knows(self) -> None:
        subject = [
            name(NameOID.COUNTRY_NAME, "MT"),
            name(NameOID.LOCALITY_NAME, "Zebbug"),
            name(NameOID.ORGANIZATION_NAME, "Example, Inc."),
            name(NameOID.ORGANIZATIONAL_UNIT_NAME, "IT (EU)"),
            name(NameOID.STATE_OR_PROVINCE_NAME, "Gozo"),
            name(CN, ME),
        ]
        assert verify(pem(request(*subject))).identity == ME

    def test_extensions_that_every_certificate_has(self) -> None:
        purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        harmless = (
            x509.BasicConstraints(ca=False, path_length=None),
            key_usage(digital_signature=True, key_encipherment=True),
            x509.ExtendedKeyUsage(purposes),
            san(x509.DNSName(ME)),
        )
        assert verify(named(*harmless)).has_dns_name

    @pytest.mark.parametrize("digest", [hashes.SHA256(), hashes.SHA384(), hashes.SHA512()])
    def test_sha_2(self, digest: hashes.HashAlgorithm) -> None:
        for key in (rsa_key(), ec_key()):
            assert verify(named(key=key, digest=digest)).identity == ME

    @pytest.mark.parametrize("identity", ["n1", "N1.Example.NET", "a_b-c.d", "a" * 63 + ".example", "a." * 126 + "b"])
    def test_names_of_servers(self, identity: str) -> None:
        text = pem(request(name(CN, identity), extensions=(san(x509.DNSName(identity)),)))
        assert verify(text, identity).identity == identity

    def test_line_ends_of_another_system_and_blanks_around(self) -> None:
        text = f"\n{named()}\n ".replace("\n", "\r\n")
        assert verify(text).pem == text

    def test_an_extension_or_attribute_that_the_site_lets_by(self) -> None:
        oid = "1.3.6.1.4.1.34380.1.1.1"
        extension = x509.UnrecognizedExtension(x509.ObjectIdentifier(oid), b"\x0c\x01x")
        assert refused(named(extension)).reason == "csr_extension"
        assert verify(named(extension), allowed_extensions=[oid]).identity == ME
        attribute = ("1.2.840.113549.1.9.7", b"password")
        assert refused(named(attributes=(attribute,))).reason == "csr_extension"
        assert verify(named(attributes=(attribute,)), allowed_extensions=[attribute[0]]).identity == ME

    def test_what_the_site_lets_by_does_not_let_names_by(self) -> None:
        text = named(san(x509.DNSName("other.example.net")))
        assert refused(text, allowed_extensions=["2.5.29.17"]).reason == "csr_wrong_name"


class TestText:
    @pytest.mark.parametrize(
        "text",
        [
            "",
            "hello",
            "-----BEGIN CERTIFICATE REQUEST-----\nMA==\n-----END CERTIFICATE REQUEST-----\n",
            "-----BEGIN CERTIFICATE REQUEST-----\nM\n-----END CERTIFICATE REQUEST-----\n",
            "-----BEGIN CERTIFICATE REQUEST-----\n\n-----END CERTIFICATE REQUEST-----\n",
            "-----BEGIN CERTIFICATE REQUEST-----\n" + "A" * 1024 * 1024 + "\n-----END CERTIFICATE REQUEST-----\n",
            (KEYS / "ca-v1.pem").read_text(),
            named().replace("CERTIFICATE REQUEST", "NEW CERTIFICATE REQUEST"),
            named() + named(),
            "CN=other\n" + named(),
            named() + "trailing",
            named().replace("\n", "\nComment: x\n\n", 1),
            "é" + named(),
        ],
    )
    def test_not_exactly_one_block(self, text: str) -> None:
        assert refused(text).reason == "csr_malformed"

    def test_trailing_bytes_inside(self) -> None:
        der = request(name(CN, ME)).public_bytes(serialization.Encoding.DER)
        assert verify(armour(LABEL, der)).identity == ME
        for other in (der + b"\0", der[:-1], der[: len(der) // 2]):
            assert refused(armour(LABEL, other)).reason == "csr_malformed"

    def test_what_is_refused_is_named_and_printable(self) -> None:
        assert str(refused("\x1b[2Jhello")) == ("not one PEM block of a CERTIFICATE REQUEST, but '\\x1b[2Jhello'")


class TestSignature:
    def test_changed_after_signing(self) -> None:
        der = bytearray(request(name(CN, ME)).public_bytes(serialization.Encoding.DER))
        der[-1] ^= 1
        assert refused(armour(LABEL, bytes(der))).reason == "csr_bad_signature"

    def test_signed_by_another_key(self) -> None:
        mine, other = (
            request(name(CN, who)).public_bytes(serialization.Encoding.DER) for who in (ME, "n2.example.net")
        )
        assert refused(armour(LABEL, mine[:-64] + other[-64:])).reason == "csr_bad_signature"

    def test_a_weak_digest(self) -> None:
        error = refused(named(key=rsa_key(), digest=hashes.SHA224()))
        assert (error.reason, str(error)) == (
            "csr_bad_signature",
            "the request is signed with sha224; allowed are SHA-256, SHA-384 and SHA-512",
        )

    def test_pss_is_a_signature_too(self) -> None:
        builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([name(CN, ME)]))
        pss = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH)
        assert verify(pem(builder.sign(rsa_key(), hashes.SHA256(), rsa_padding=pss))).key == "RSA 2048"

    @pytest.mark.parametrize(
        "made",
        [
            partial(rsa_key, 1024),
            partial(ec.generate_private_key, ec.SECP192R1()),
            partial(ec.generate_private_key, ec.SECP256K1()),
            partial(dsa.generate_private_key, 1024),
            ed448.Ed448PrivateKey.generate,
        ],
        ids=["rsa 1024", "p192", "secp256k1", "dsa", "ed448"],
    )
    def test_keys_that_no_certificate_should_have(self, made: Callable[[], Any]) -> None:
        builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([name(CN, ME)]))
        key = made()
        digest = None if isinstance(key, ed448.Ed448PrivateKey) else hashes.SHA256()
        assert refused(pem(builder.sign(key, digest))).reason == "csr_malformed"

    @pytest.mark.parametrize(("bits", "exponent"), [(8200, 65537), (2048, (1 << 32) + 1), (2048, 1)])
    def test_rsa_keys_that_take_long_to_verify(self, bits: int, exponent: int) -> None:
        """The modulus is any odd number: such a key is refused before anything is computed with it."""
        assert refused(with_rsa_key((1 << bits - 1) + 1, exponent)).reason == "csr_malformed"

    def test_a_sane_rsa_key_made_in_the_same_way_gets_as_far_as_its_signature(self) -> None:
        assert refused(with_rsa_key((1 << 2047) + 1, 65537)).reason == "csr_bad_signature"

    def test_the_key_beside_it_must_be_the_one_in_it(self) -> None:
        for key, other in ((rsa_key(), rsa_key(3072)), (ec_key(), rsa_key()), (ed25519_key(), ec_key())):
            for kind in (PublicFormat.SubjectPublicKeyInfo, PublicFormat.PKCS1):
                if kind is PublicFormat.PKCS1 and not isinstance(other, rsa.RSAPrivateKey):
                    continue
                assert refused(named(key=key), public_key=public_pem(other, kind)).reason == "csr_malformed"
            for text in ("", "hello", "x" * (MAX_REQUEST + 1)):
                assert refused(named(key=key), public_key=text).reason == "csr_malformed"


class TestNames:
    @pytest.mark.parametrize(
        ("names", "reason"),
        [
            ([], "csr_wrong_name"),
            (["n2.example.net"], "csr_wrong_name"),
            ([ME, "root.mcollective"], "csr_wrong_name"),
            (["root.mcollective", ME], "csr_wrong_name"),
            ([ME, ME], "csr_wrong_name"),
            ([ME.upper()], "csr_wrong_name"),
            ([ME + "."], "csr_wrong_name"),
            ([" " + ME], "csr_wrong_name"),
            ([ME + "\0.mcollective"], "csr_wrong_name"),
            ([ME + "\n"], "csr_wrong_name"),
            (["root.mcollective"], "csr_denied"),
            (["ROOT.MCollective."], "csr_denied"),
            (["choria=root"], "csr_wrong_name"),
        ],
    )
    def test_exactly_one_common_name_and_it_is_the_servers(self, names: list[str], reason: str) -> None:
        assert refused(pem(request(*(name(CN, one) for one in names)))).reason == reason

    @pytest.mark.parametrize(
        ("identity", "reason"),
        [
            ("root.privileged.mcollective", "csr_denied"),
            ("BOB.MCollective", "csr_denied"),
            ("bob.mcollective.", "csr_denied"),
            (" bob.mcollective", "csr_wrong_name"),
            ("*", "csr_wrong_name"),
            ("*.example.net", "csr_wrong_name"),
            ("n?", "csr_wrong_name"),
            (">", "csr_wrong_name"),
            ("", "csr_wrong_name"),
            ("n1 example", "csr_wrong_name"),
            ("nöde", "csr_wrong_name"),
            ("choria=bob", "csr_wrong_name"),
            ("a" * 254, "csr_wrong_name"),
        ],
    )
    def test_even_when_the_server_is_called_that(self, identity: str, reason: str) -> None:
        assert refused(pem(request(name(CN, identity))), identity).reason == reason

    def test_two_common_names_in_one_part(self) -> None:
        parts = x509.Name([x509.RelativeDistinguishedName([name(CN, ME), name(CN, "root.mcollective")])])
        text = pem(x509.CertificateSigningRequestBuilder().subject_name(parts).sign(ed25519_key(), None))
        assert str(refused(text)) == "the request has 2 common names: exactly one is allowed"

    @pytest.mark.parametrize("oid", [NameOID.EMAIL_ADDRESS, NameOID.SERIAL_NUMBER, NameOID.USER_ID, NameOID.TITLE])
    def test_other_parts_of_the_subject(self, oid: x509.ObjectIdentifier) -> None:
        error = refused(pem(request(name(CN, ME), name(oid, "x"))))
        assert error.reason == "csr_wrong_name"
        assert oid.dotted_string in str(error)

    @pytest.mark.parametrize("value", ["x/CN=root.mcollective", "x\nCN", "x\0"])
    def test_a_part_that_reads_as_another(self, value: str) -> None:
        text = pem(request(name(NameOID.ORGANIZATION_NAME, value), name(CN, ME)))
        assert refused(text).reason == "csr_wrong_name"

    OTHER_NAMES: tuple[tuple[x509.GeneralName, str], ...] = (
        (x509.IPAddress(IPv4Address("10.0.0.1")), "IPAddress: '10.0.0.1'"),
        (x509.UniformResourceIdentifier("spiffe://root"), "UniformResourceIdentifier: 'spiffe://root'"),
        (x509.RFC822Name("root@example.net"), "RFC822Name: 'root@example.net'"),
        (x509.OtherName(x509.ObjectIdentifier("1.3.6.1.4.1.311.20.2.3"), b"\x0c\x04root"), "OtherName: "),
        (x509.DirectoryName(x509.Name([name(CN, "root")])), "DirectoryName: '<Name(CN=root)>'"),
        (x509.RegisteredID(x509.ObjectIdentifier("1.2.3")), "RegisteredID: "),
    )

    @pytest.mark.parametrize(("other", "words"), OTHER_NAMES)
    def test_alternative_names_of_every_other_kind(self, other: x509.GeneralName, words: str) -> None:
        for names in ([other], [x509.DNSName(ME), other]):
            error = refused(named(san(*names)))
            assert error.reason == "csr_wrong_name"
            assert words in str(error)

    @pytest.mark.parametrize(
        ("dns", "reason"),
        [
            ("bob.mcollective", "csr_denied"),
            ("BOB.MCollective.", "csr_denied"),
            ("other.example.net", "csr_wrong_name"),
            ("*.example.net", "csr_wrong_name"),
            (ME.upper(), "csr_wrong_name"),
            ("", "csr_wrong_name"),
        ],
    )
    def test_dns_names(self, dns: str, reason: str) -> None:
        for names in ([dns], [ME, dns], [dns, ME]):
            assert refused(named(san(*map(x509.DNSName, names)))).reason == reason

    def test_the_truth_table(self) -> None:
        for cn_ok in (True, False):
            for san_ok in (True, False):
                for deny_ok in (True, False):
                    deny = DenyList([] if deny_ok else [r"^n1\."])
                    text = pem(
                        request(
                            name(CN, ME if cn_ok else "n1.other.net"),
                            extensions=(san(x509.DNSName(ME if san_ok else "n1.third.net")),),
                        )
                    )
                    accepted = reason_of(partial(verify_request, text, ME, deny)) == "accepted"
                    assert accepted is (cn_ok and san_ok and deny_ok)


class TestExtensions:
    @pytest.mark.parametrize(
        ("extension", "words"),
        [
            (x509.BasicConstraints(ca=True, path_length=None), "basicConstraints (2.5.29.19)"),
            (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE]), "extendedKeyUsage (2.5.29.37)"),
            (
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CODE_SIGNING]),
                "extendedKeyUsage (2.5.29.37)",
            ),
            (key_usage(digital_signature=True, key_cert_sign=True), "keyUsage (2.5.29.15)"),
            (key_usage(crl_sign=True), "keyUsage (2.5.29.15)"),
            (
                x509.UnrecognizedExtension(x509.ObjectIdentifier("1.3.6.1.4.1.34380.1.3.1"), b"\x0c\x04root"),
                "Unknown OID (1.3.6.1.4.1.34380.1.3.1)",
            ),
            (x509.SubjectKeyIdentifier(b"x"), "subjectKeyIdentifier (2.5.29.14)"),
            (x509.OCSPNoCheck(), "OCSPNoCheck (1.3.6.1.5.5.7.48.1.5)"),
        ],
    )
    def test_what_gives_more_than_a_servers_certificate_has(self, extension: x509.ExtensionType, words: str) -> None:
        for extensions in ([extension], [san(x509.DNSName(ME)), extension]):
            error = refused(named(*extensions))
            assert error.reason == "csr_extension"
            assert str(error) == f"the request asks for an extension that is not allowed: {words}"

    def test_an_extension_with_nonsense_in_it(self) -> None:
        for oid in ("2.5.29.17", "2.5.29.19", "2.5.29.15", "2.5.29.37"):
            text = named(x509.UnrecognizedExtension(x509.ObjectIdentifier(oid), b"nonsense"))
            assert refused(text).reason == "csr_malformed"

    def test_another_way_to_ask_for_extensions(self) -> None:
        """What one tool doesn't see, another might put into the certificate."""
        standard, microsoft = "1.2.840.113549.1.9.14", "1.3.6.1.4.1.311.2.1.14"
        harmless = asking(x509.BasicConstraints(ca=False, path_length=None))
        harmful = asking(x509.BasicConstraints(ca=True, path_length=None))
        assert verify(with_attributes((standard, harmless))).identity == ME
        for attributes in (
            [(standard, harmful)],
            [(microsoft, harmful)],
            [(microsoft, harmless)],
            [(standard, harmless), (microsoft, harmful)],
            [(standard, harmless), (standard, harmful)],
        ):
            assert refused(with_attributes(*attributes)).reason == "csr_extension"
        # In a DER set the smaller comes first.
        assert refused(with_attributes((standard, harmful), (standard, harmless))).reason == "csr_malformed"

    def test_the_same_attribute_twice(self) -> None:
        password = ("1.2.840.113549.1.9.7", tlv(0x0C, b"one"))
        assert verify(with_attributes(password), allowed_extensions=[password[0]]).identity == ME
        assert refused(with_attributes(password, password), allowed_extensions=[password[0]]).reason == "csr_extension"

    def test_an_attribute_with_two_values(self) -> None:
        values = tlv(0x0C, b"one") + tlv(0x0C, b"two")
        text = with_attributes(("1.2.840.113549.1.9.7", values))
        assert refused(text, allowed_extensions=["1.2.840.113549.1.9.7"]).reason == "csr_malformed"
