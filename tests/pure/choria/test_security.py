"""Caller ids, keys, signatures: what is taken and what is refused, and that no key is ever shown."""

import base64
import datetime
import json
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from provisioner.choria import security
from provisioner.choria.security import CertificateSigner, SeedSigner
from provisioner.secret import Secret
from tests.conformance.recordings import key

SEED = Secret("02" * 32)
PUBLIC = "8139770ea87d175f56a35466c34c7ecccb8d8a91b4ee37a25df60f5b8fc9b394"
CERTIFICATE = key("provisioner-v1.pem")
KEY = Secret(key("provisioner-v1.key"))


def _token(claims: Any) -> str:
    return f"e30.{base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b'=').decode()}.sig"


def _pem(
    private: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey, password: bytes = b""
) -> Secret:
    encryption = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    encoded = private.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
    return Secret(encoded.decode())


def _certificate(private: ec.EllipticCurvePrivateKey) -> str:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")])
    then = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    built = x509.CertificateBuilder(name, name, private.public_key(), 1, then, then + datetime.timedelta(days=1))
    return built.sign(private, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


@pytest.mark.parametrize(
    ("provider", "euid", "user", "passwd_name", "override", "expected"),
    [
        ("file", 1000, "choria", "choria", "", "choria.mcollective"),
        ("file", 0, "root", "root", "", "prov.example.net"),
        ("file", 1000, "", "choria", "", "choria.mcollective"),
        ("file", 1000, "", "", "", "prov.example.net"),
        ("file", 0, "root", "root", "special", "special"),
        ("puppet", 0, "root", "root", "", "root.mcollective"),
        ("puppet", 1000, "rip", "rip", "special", "special"),
        ("puppet", 1000, "", "", "", "prov.example.net"),
        ("choria", 0, "root", "root", "special", "root"),
        ("choria", 1000, "", "choria", "", "choria"),
        ("choria", 1000, "", "", "", "prov.example.net"),
    ],
)
def test_certnames(provider: str, euid: int, user: str, passwd_name: str, override: str, expected: str) -> None:
    assert expected == security.certname(
        provider, identity="prov.example.net", override=override, euid=euid, user=user, passwd_name=passwd_name
    )


def test_caller_ids() -> None:
    assert security.caller_of_certname("choria.mcollective") == "choria=choria.mcollective"
    assert security.caller_of_token(key("signer.jwt")) == "provisioner_signer"
    assert security.caller_of_token(key("signer.jwt") + "\n") == "provisioner_signer"


@pytest.mark.parametrize(
    ("token", "message"),
    [
        (_token({"purpose": "choria_server", "callerid": "x"}), "no client token: its purpose is 'choria_server'"),
        (_token({"callerid": "x"}), "its purpose is 'None'"),
        (_token({"purpose": "choria_client_id"}), "the token has no callerid"),
        (_token({"purpose": "choria_client_id", "callerid": ""}), "the token has no callerid"),
        (_token({"purpose": "choria_client_id", "callerid": 7}), "the token has no callerid"),
        (_token([]), "no JSON object"),
        ("a.b", "three parts"),
        ("a.!!!!.c", "its claims can't be read"),
        ("a.ä.c", "its claims can't be read"),
        ("a.b.c", "its claims can't be read"),
        ("a.bm9wZQ.c", "its claims can't be read"),
    ],
)
def test_tokens_without_a_caller_id(token: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        security.caller_of_token(token)


@given(st.text())
def test_any_text_as_token_gives_a_value_error_only(text: str) -> None:
    with pytest.raises(ValueError, match=r"token|JWT"):
        security.caller_of_token(text)


def test_certificate_signer_refuses_what_it_cant_use() -> None:
    elliptic = ec.generate_private_key(ec.SECP256R1())
    other = rsa.generate_private_key(65537, 2048)
    for certificate, private, message in (
        (CERTIFICATE, Secret("nonsense"), "the private key can't be read"),
        (CERTIFICATE, _pem(other, b"password"), "the private key can't be read"),
        (CERTIFICATE, _pem(elliptic), "the private key is no RSA key"),
        (CERTIFICATE, _pem(other), "the private key does not belong to the certificate"),
        ("nonsense", KEY, "the certificate can't be read"),
    ):
        with pytest.raises(ValueError, match=message) as caught:
            CertificateSigner(certificate, private)
        assert "BEGIN" not in str(caught.value)


def test_certificate_signer_carries_the_whole_file() -> None:
    signer = CertificateSigner(f"# a comment\n{CERTIFICATE}\n", KEY)
    assert signer.credential == f"# a comment\n{CERTIFICATE}\n"
    assert security.verify_certificate_signature(b"message", signer.sign(b"message"), signer.credential)
    assert "PRIVATE" not in repr(signer)


def test_certificate_signatures_that_dont_verify() -> None:
    good = CertificateSigner(CERTIFICATE, KEY).sign(b"message")
    elliptic = ec.generate_private_key(ec.SECP256R1())
    for message, signature, certificate in (
        (b"other", good, CERTIFICATE),
        (b"message", "insecure", CERTIFICATE),
        (b"message", "ä", CERTIFICATE),
        (b"message", good, "insecure"),
        (b"message", good, _certificate(elliptic)),
    ):
        assert not security.verify_certificate_signature(message, signature, certificate)


def test_seed_signer_refuses_what_it_cant_use() -> None:
    for token, seed, message in (
        (_token({}), Secret("02" * 32 + "\n"), "64 hex digits without a line end are wanted, 65 characters found"),
        (_token({}), Secret("zz" * 32), "not an Ed25519 seed"),
        (_token({}), Secret(""), "not an Ed25519 seed"),
        (_token({"public_key": "00" * 32}), SEED, "the seed does not belong to the token"),
        ("nonsense", SEED, "not a JWT"),
    ):
        with pytest.raises(ValueError, match=message) as caught:
            SeedSigner(token, seed)
        assert "0202" not in str(caught.value)


def test_seed_signer_carries_the_token_untrimmed() -> None:
    token = _token({"public_key": PUBLIC}) + "\n"
    signer = SeedSigner(token, SEED)
    assert signer.credential == token
    signature = base64.b64decode(signer.sign(b"message"))
    assert security.verify_seed_signature(b"message", signature, PUBLIC)
    assert "0202" not in repr(signer)


def test_seed_signatures_that_dont_verify() -> None:
    good = base64.b64decode(SeedSigner(_token({}), SEED).sign(b"message"))
    for message, signature, public in (
        (b"other", good, PUBLIC),
        (b"message", good[:-1], PUBLIC),
        (b"message", b"", PUBLIC),
        (b"message", good, PUBLIC[:-2]),
        (b"message", good, "nonsense"),
        (b"message", good, "00" * 32),
    ):
        assert not security.verify_seed_signature(message, signature, public)


def test_insecure_is_a_literal() -> None:
    assert security.INSECURE.sign(b"anything") == security.INSECURE.credential == "insecure"
