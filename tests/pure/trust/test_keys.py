"""Keys from files and settings."""

import os
from contextlib import chdir
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from provisioner.errors import ConfigError
from provisioner.trust.keys import (
    MAX_KEY_FILE,
    SigningKey,
    ed25519_verifier,
    load_signing_key,
    load_verification_key,
    unhex,
)
from provisioner.trust.pem import armour, first_block
from tests.pure.trust.material import (
    KEYS,
    ec_key,
    ed25519_key,
    organization,
    private_pem,
    public_pem,
    rsa_key,
    rsa_signer,
    rsa_verifier,
)

ISSUER = "f86bd04c415479aef7ce6b47758198ae8a99401b61725772b1e16a6d9f2b8295"
X25519_PEM = X25519PrivateKey.from_private_bytes(b"x" * 32).private_bytes(
    Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
)


def written(folder: Path, content: str | bytes) -> Path:
    path = folder / "key"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def complaint(error: pytest.ExceptionInfo[ConfigError]) -> str:
    (fault,) = error.value.faults
    return str(fault)


class TestVerificationKey:
    def test_64_hexadecimal_digits_are_an_ed25519_key(self) -> None:
        for setting in (ISSUER, ISSUER.upper(), f"  {ISSUER}\n"):
            key = load_verification_key(setting)
            assert (key.kind, key.algorithms) == ("Ed25519", ("EdDSA",))
            assert key.key == organization().public.key

    def test_they_are_a_key_even_when_there_is_a_file_of_that_name(self, tmp_path: Path) -> None:
        with chdir(tmp_path):
            Path(ISSUER).write_text("something else")
            assert load_verification_key(ISSUER).kind == "Ed25519"

    def test_a_file_may_hold_them_with_a_newline(self, tmp_path: Path) -> None:
        assert load_verification_key(str(KEYS / "issuer.public")).key == organization().public.key
        assert load_verification_key(str(written(tmp_path, ISSUER + "\n"))).key == organization().public.key

    def test_rsa_in_each_form_that_go_reads(self, tmp_path: Path) -> None:
        key = rsa_signer().key
        assert not isinstance(key, type(ed25519_key()))
        pkix = public_pem(key, PublicFormat.SubjectPublicKeyInfo)
        pkcs1 = public_pem(key, PublicFormat.PKCS1)
        block = first_block(pkcs1)
        assert block is not None
        for text in (pkix, pkcs1, armour("PUBLIC KEY", block.body), armour("CERTIFICATE", block.body)):
            loaded = load_verification_key(str(written(tmp_path, text)))
            assert (loaded.kind, loaded.algorithms) == ("RSA", ("RS256", "RS384", "RS512"))
            assert loaded.key == rsa_verifier().key

    def test_a_certificate_stands_for_its_key(self) -> None:
        key = load_verification_key(str(KEYS / "provisioner-v1.pem"))
        assert key.key == load_signing_key(KEYS / "provisioner-v1.key").public.key

    def test_ed25519_in_pem(self, tmp_path: Path) -> None:
        path = written(tmp_path, public_pem(ed25519_key(), PublicFormat.SubjectPublicKeyInfo))
        assert load_verification_key(str(path)).key == ed25519_key().public_key()

    def test_a_misspelt_path_is_called_a_missing_file(self) -> None:
        with pytest.raises(ConfigError) as caught:
            load_verification_key("/etc/choria-provisioner/no-such.pem")
        assert complaint(caught) == (
            "/etc/choria-provisioner/no-such.pem: jwt_verify_cert: there is no such file; nor is the value an Ed25519"
            " public key, which has 64 hexadecimal digits"
        )

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            ("", "holds neither a PEM certificate"),
            ("hello", "holds neither a PEM certificate"),
            (ISSUER[:-1], "holds neither a PEM certificate"),
            (ISSUER + "0", "holds neither a PEM certificate"),
            (ISSUER[:-1] + "g", "holds neither a PEM certificate"),
            ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "'CERTIFICATE' is not an RSA or"),
            (private_pem(rsa_key(), PrivateFormat.PKCS8), "'PRIVATE KEY' is not an RSA or Ed25519 public key"),
            (public_pem(ec_key(), PublicFormat.SubjectPublicKeyInfo), "'PUBLIC KEY' is not an RSA or Ed25519"),
            (public_pem(rsa_key(1024), PublicFormat.PKCS1), "an RSA key of 1024 bits is too short: at least 2048"),
            (b"\xff\xfe", "is not text"),
            (b"a" * (MAX_KEY_FILE + 1), "is larger than 65536 bytes"),
        ],
    )
    def test_what_is_no_key_is_named(self, tmp_path: Path, content: str | bytes, words: str) -> None:
        path = written(tmp_path, content)
        with pytest.raises(ConfigError) as caught:
            load_verification_key(str(path))
        assert complaint(caught).startswith(f"{path}: jwt_verify_cert: ")
        assert words in complaint(caught)

    def test_no_setting_is_no_key(self) -> None:
        with pytest.raises(ConfigError, match="no key is set"):
            load_verification_key("  ")

    def test_what_is_no_regular_file_is_not_opened(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "fifo")
        for path in (tmp_path, tmp_path / "fifo", Path("/dev/zero")):
            with pytest.raises(ConfigError, match="is not a regular file"):
                load_verification_key(str(path))

    def test_a_file_that_cannot_be_reached(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="can't be read: File name too long"):
            load_verification_key(str(tmp_path / ("n" * 300)))


class TestSigningKey:
    def test_a_seed(self, tmp_path: Path) -> None:
        key = load_signing_key(KEYS / "issuer.seed")
        assert (key.algorithm, key.public_hex) == ("EdDSA", ISSUER)
        assert load_signing_key(written(tmp_path, (KEYS / "issuer.seed").read_text() + "\n")).public_hex == ISSUER

    def test_rsa_in_pkcs1_and_pkcs8(self, tmp_path: Path) -> None:
        for kind in (PrivateFormat.TraditionalOpenSSL, PrivateFormat.PKCS8):
            key = load_signing_key(written(tmp_path, private_pem(rsa_key(), kind)))
            assert (key.algorithm, key.public_hex) == ("RS256", "")
            assert key.public.key == rsa_key().public_key()

    def test_ed25519_in_pkcs8(self, tmp_path: Path) -> None:
        key = load_signing_key(written(tmp_path, private_pem(ed25519_key(), PrivateFormat.PKCS8)))
        assert key.public.key == ed25519_key().public_key()

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            ("", "holds neither a PEM private key nor a seed"),
            ("0" * 63, "holds neither a PEM private key nor a seed"),
            ("secret-secret", "holds neither a PEM private key nor a seed"),
            (public_pem(rsa_key(), PublicFormat.PKCS1), "holds neither a PEM private key nor a seed"),
            (private_pem(rsa_key(), PrivateFormat.PKCS8, b"password"), "the private key is encrypted"),
            (private_pem(rsa_key(), PrivateFormat.TraditionalOpenSSL, b"password"), "the private key is encrypted"),
            (private_pem(ec_key(), PrivateFormat.PKCS8), "is neither RSA nor Ed25519"),
            (X25519_PEM, "is neither RSA nor Ed25519"),
            (private_pem(rsa_key(1024), PrivateFormat.PKCS8), "an RSA key of 1024 bits is too short"),
        ],
    )
    def test_what_is_no_key_is_named_and_not_shown(self, tmp_path: Path, content: str | bytes, words: str) -> None:
        path = written(tmp_path, content)
        with pytest.raises(ConfigError) as caught:
            load_signing_key(path)
        assert complaint(caught).startswith(f"{path}: jwt_signing_key: ")
        assert words in complaint(caught)
        assert "secret-secret" not in complaint(caught)

    def test_it_is_never_shown(self) -> None:
        assert repr(organization()) == "SigningKey()"
        assert isinstance(organization(), SigningKey)


def test_hex_is_taken_literally() -> None:
    assert unhex("00fF", 2) == b"\x00\xff"
    for text in ("00f", "00ff00", "0 0ff", "00 ff", "0x00", "00f\n", "\u0660\u0660\u0660\u0660", "00gg"):
        with pytest.raises(ValueError, match="not 2 bytes in hexadecimal"):
            unhex(text, 2)
    with pytest.raises(ValueError, match="not 32 bytes"):
        ed25519_verifier(ISSUER[:-2])
