"""Private keys sealed for one server."""

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import PrivateFormat, PublicFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from provisioner.errors import TrustError
from provisioner.secret import Secret
from provisioner.trust.pem import armour, first_block
from provisioner.trust.sealing import ExchangeKey, decrypt, derive, encrypt, seal_private_key, unseal
from tests.pure.trust.material import KEYS, ec_key, ed25519_key, private_pem, public_pem, reason_of, rsa_key

# wire-protocol 7.2
SERVER = ExchangeKey(
    X25519PrivateKey.from_private_bytes(
        bytes.fromhex("77076d0a7318a57d3c16c17251b26645c6c2f6c1c1f0c1c1c1c1c1c1c1c1c1c1")
    )
)
OURS = ExchangeKey(X25519PrivateKey.from_private_bytes(bytes(range(1, 33))))
SERVER_PUBLIC = "6b0f7c23f87ec7c88bc0b5da4f75a1769284e2f78c277dd694e43f8f06a3830c"
OUR_PUBLIC = "07a37cbc142093c8b755dc1b10e86cb426374ad16aa853ed0bdfc0b2b86d1c7c"
SHARED = bytes.fromhex("9864f3ef69ca547501ceda2c2484b94a71ad6861d9f2c2574b5f72cdd72afd0c")
IV = bytes.fromhex("a0a1a2a3a4a5a6a7a8a9aaabacadaeaf")
PLAIN = bytes.fromhex("3003020105")

PKCS1 = private_pem(rsa_key(), PrivateFormat.TraditionalOpenSSL)
PKCS8 = private_pem(rsa_key(), PrivateFormat.PKCS8)


class TestSpecificationsExample:
    def test_the_exchange(self) -> None:
        assert (SERVER.public, OURS.public) == (SERVER_PUBLIC, OUR_PUBLIC)
        assert SERVER.shared(OUR_PUBLIC) == OURS.shared(SERVER_PUBLIC) == SHARED

    def test_the_key(self) -> None:
        assert derive(SHARED, IV).hex() == "0e86084b19d2e07e04cc8515e836d550b88d27320ea42df97fd5300ba5bc379d"

    def test_the_text(self) -> None:
        text = encrypt(PLAIN, SHARED, IV)
        assert text == (
            "-----BEGIN RSA PRIVATE KEY-----\n"
            "Proc-Type: 4,ENCRYPTED\n"
            "DEK-Info: AES-256-CBC,a0a1a2a3a4a5a6a7a8a9aaabacadaeaf\n"
            "\n"
            "1Wxf1hDGquHIhYdgakScbA==\n"
            "-----END RSA PRIVATE KEY-----\n"
        )
        assert decrypt(text, SHARED) == PLAIN
        assert decrypt(text.replace(IV.hex(), IV.hex().upper()), SHARED) == PLAIN


class TestSealing:
    @pytest.mark.parametrize("text", [PKCS1, PKCS8, "a comment\n" + PKCS1 + "and more", PKCS1.replace("\n", "\r\n")])
    def test_the_server_opens_what_was_sealed_for_it(self, text: str) -> None:
        sealed = seal_private_key(Secret(text), SERVER_PUBLIC)
        assert unseal(sealed.key, SERVER, sealed.ecdh_public).reveal() == PKCS1

    def test_a_recorded_key(self) -> None:
        text = (KEYS / "provisioner-v1.key").read_text()
        sealed = seal_private_key(Secret(text), SERVER_PUBLIC.upper(), own=OURS, entropy=lambda _: IV)
        assert sealed.ecdh_public == OUR_PUBLIC
        assert unseal(sealed.key, SERVER, OUR_PUBLIC).reveal() == text

    def test_another_implementation_opens_it(self) -> None:
        """OpenSSL's reader of encrypted PEM, as the library has it, with the shared secret as the password."""
        sealed = seal_private_key(Secret(PKCS1), SERVER_PUBLIC)
        password = SERVER.shared(sealed.ecdh_public)
        key = serialization.load_pem_private_key(sealed.key.encode(), password)
        assert isinstance(key, RSAPrivateKey)
        assert key.private_numbers() == rsa_key().private_numbers()

    def test_nothing_is_used_twice(self) -> None:
        one, other = (seal_private_key(Secret(PKCS1), SERVER_PUBLIC) for _ in range(2))
        assert one.ecdh_public != other.ecdh_public
        assert one.key.splitlines()[2] != other.key.splitlines()[2]

    def test_the_key_is_not_shown(self) -> None:
        sealed = seal_private_key(Secret(PKCS1), SERVER_PUBLIC)
        assert repr(sealed) == f"Sealed(ecdh_public='{sealed.ecdh_public}')"
        assert repr(OURS) == "ExchangeKey()"
        block = first_block(PKCS1)
        assert block is not None
        assert block.body[:50] not in (first_block(sealed.key) or block).body

    def test_another_server_does_not_open_it(self) -> None:
        sealed = seal_private_key(Secret(PKCS1), SERVER_PUBLIC, own=OURS, entropy=lambda _: IV)
        other = ExchangeKey(X25519PrivateKey.from_private_bytes(b"o" * 32))
        assert reason_of(lambda: unseal(sealed.key, other, sealed.ecdh_public)) == "seal_failed"


class TestRefused:
    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("", "is not PEM"),
            ("hello", "is not PEM"),
            ("x" * 20_000, "is not PEM of at most 16384 characters"),
            (PKCS1 + " " * 16_384, "is not PEM of at most 16384 characters"),
            (private_pem(rsa_key(), PrivateFormat.TraditionalOpenSSL, b"password"), "is encrypted"),
            (private_pem(rsa_key(), PrivateFormat.PKCS8, b"password"), "is encrypted"),
            (private_pem(ec_key(), PrivateFormat.TraditionalOpenSSL), "is 'EC PRIVATE KEY'; a server can only use"),
            (private_pem(ec_key(), PrivateFormat.PKCS8), "is not RSA of at least 2048 bits"),
            (private_pem(ed25519_key(), PrivateFormat.PKCS8), "is not RSA of at least 2048 bits"),
            (private_pem(rsa_key(1024), PrivateFormat.PKCS8), "is not RSA of at least 2048 bits"),
            (public_pem(rsa_key(), PublicFormat.PKCS1), "is 'RSA PUBLIC KEY'; a server can only use"),
            ((KEYS / "ca-v1.pem").read_text() + PKCS1, "is 'CERTIFICATE'; a server can only use"),
            (armour("RSA PRIVATE KEY", PLAIN), "is not a whole private key"),
            (armour("PRIVATE KEY", b""), "is not a whole private key"),
        ],
    )
    def test_keys_that_a_server_could_not_use(self, text: str, words: str) -> None:
        with pytest.raises(TrustError) as caught:
            seal_private_key(Secret(text), SERVER_PUBLIC)
        assert caught.value.reason == "seal_failed"
        assert words in str(caught.value)
        assert not any(line in str(caught.value) for line in text.splitlines()[1:-1] if line)

    def test_without_an_exchange_nothing_is_sent(self) -> None:
        with pytest.raises(TrustError, match=r"did not start a key exchange: features\.jwt must be on"):
            seal_private_key(Secret(PKCS1), "")

    @pytest.mark.parametrize(
        "public",
        [
            "00" * 32,
            "01" + "00" * 31,
            "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
            "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
            "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
            "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
            "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
            "hello",
            SERVER_PUBLIC[:-2],
            SERVER_PUBLIC + "00",
            SERVER_PUBLIC[:-1] + " ",
        ],
    )
    def test_points_with_which_everybody_knows_the_secret(self, public: str) -> None:
        with pytest.raises(TrustError, match="ecdh_public") as caught:
            seal_private_key(Secret(PKCS1), public)
        assert caught.value.reason == "seal_failed"

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("", "bad key received"),
            (PKCS1, "key is not encrypted"),
            (encrypt(PLAIN, SHARED, IV).replace("AES-256", "AES-128"), "key is not encrypted"),
            (encrypt(PLAIN, b"x" * 32, IV), "could not decrypt private key: "),
            (encrypt(PLAIN, SHARED, IV).replace("1Wxf1hDGquHIhYdgakScbA==", "AAAA"), "could not decrypt private key: "),
        ],
    )
    def test_what_can_not_be_opened(self, text: str, words: str) -> None:
        with pytest.raises(TrustError, match=words) as caught:
            unseal(text, SERVER, OUR_PUBLIC)
        assert caught.value.reason == "seal_failed"

    @settings(deadline=None)
    @given(st.text() | st.binary().map(lambda body: armour("RSA PRIVATE KEY", body)), st.text())
    def test_nothing_is_too_odd(self, text: str, public: str) -> None:
        assert reason_of(lambda: seal_private_key(Secret(text), SERVER_PUBLIC)) == "seal_failed"
        assert reason_of(lambda: seal_private_key(Secret(PKCS1), public)) == "seal_failed"
        assert reason_of(lambda: unseal(text, SERVER, public)) == "seal_failed"

    @given(st.binary(max_size=100), st.binary(min_size=32, max_size=32), st.binary(min_size=16, max_size=16))
    def test_whatever_is_encrypted_is_decrypted(self, body: bytes, shared: bytes, iv: bytes) -> None:
        assert decrypt(encrypt(body, shared, iv), shared) == body
