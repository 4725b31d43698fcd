"""Trust chains: the files they are issued with, and every link that can break."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from provisioner.errors import ConfigError, TrustError
from provisioner.trust.chain import load_chain_issuer
from provisioner.trust.jws import sign
from provisioner.trust.keys import SigningKey
from provisioner.trust.server_token import load_server_token_issuer, verify_server_token
from tests.pure.trust.material import (
    KEYS,
    NOW,
    RECORDED,
    organization,
    payload_of,
    reason_of,
    recorded_token,
    rsa_verifier,
    seeded,
)

PUBLIC = seeded(3).public_hex


def refused(token: str, key: SigningKey | None = None, now: float = NOW) -> TrustError:
    with pytest.raises(TrustError) as caught:
        verify_server_token(token, (key or organization()).public, now=now)
    return caught.value


class TestFiles:
    def test_they_are_read_anew_for_each_server(self, tmp_path: Path) -> None:
        path = tmp_path / "seed"
        for byte in (1, 2):
            path.write_text(bytes([byte] * 32).hex())
            assert load_server_token_issuer(path, None, 1.0, now=NOW).key.public_hex == seeded(byte).public_hex

    def test_rsa_can_not_be_part_of_a_chain(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="jwt_signing_key: with jwt_signing_token this must be an Ed25519 seed"):
            load_server_token_issuer(KEYS / "jwt-signer-rsa.key", KEYS / "signer.jwt", 1.0, now=RECORDED)
        assert load_server_token_issuer(KEYS / "jwt-signer-rsa.key", None, 1.0, now=RECORDED).chain is None

    def test_the_key_must_be_the_tokens(self) -> None:
        with pytest.raises(ConfigError, match="it is for another key than the one in jwt_signing_key"):
            load_server_token_issuer(KEYS / "issuer.seed", KEYS / "signer.jwt", 1.0, now=RECORDED)

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"purpose": "choria_server"}, "it is not a client's token"),
            ({"tcs": None}, "it has no Trust Chain Signature (claim tcs)"),
            ({"jti": None, "exp": None}, "it has no claim jti, exp"),
            ({"public_key": None}, "it has no claim public_key"),
            ({"iss": "Choria Tokens Package"}, "its iss doesn't begin with I-"),
            ({"iss": "I-xyz"}, "not 32 bytes in hexadecimal"),
            ({"iss": f"I-{PUBLIC}"}, "is not signed by the Ed25519 key"),
            ({"tcs": "00" * 64}, "the organization's signature (tcs) doesn't fit"),
            ({"tcs": "xyz"}, "not 64 bytes in hexadecimal"),
            ({"jti": "another"}, "the organization's signature (tcs) doesn't fit"),
            ({"exp": RECORDED - 100}, "the token expired at 2026-11-29T13:31:49Z"),
            ({"exp": RECORDED}, "it expired at 2026-11-29T13:33:29Z; here it is 2026-11-29T13:33:29Z"),
            ({"nbf": RECORDED + 100}, "the token is valid from 2026-11-29T13:35:09Z on"),
            ({"exp": "tomorrow"}, "the token's claim 'exp' must be a time"),
        ],
    )
    def test_a_token_that_can_not_sign(self, tmp_path: Path, change: dict[str, Any], words: str) -> None:
        claims = payload_of(recorded_token("signer")) | change
        path = tmp_path / "signer.jwt"
        path.write_text(sign({name: value for name, value in claims.items() if value is not None}, organization()))
        with pytest.raises(ConfigError) as caught:
            load_server_token_issuer(KEYS / "signer.seed", path, 1.0, now=RECORDED)
        assert str(caught.value).startswith(f"{path}: jwt_signing_token: no token to sign server tokens with: ")
        assert words in str(caught.value)

    @pytest.mark.parametrize("content", ["", "hello", "a.b.c", "e30.e30.e30"])
    def test_a_file_that_holds_no_token(self, tmp_path: Path, content: str) -> None:
        path = tmp_path / "signer.jwt"
        path.write_text(content)
        with pytest.raises(ConfigError, match="no token to sign server tokens with"):
            load_chain_issuer(path, seeded(2), now=RECORDED)


def chained() -> dict[str, Any]:
    return payload_of(recorded_token("issued-server"))


SIGNER_SEED = (KEYS / "signer.seed").read_text()


class TestBrokenChains:
    """A chain's claims changed after signing, and the whole signed again by the rightful issuer."""

    VIOLATIONS: tuple[tuple[str, Callable[[dict[str, Any]], object]], ...] = (
        ("jwt_malformed", lambda claims: claims.pop("tcs")),
        ("jwt_malformed", lambda claims: claims.pop("issexp")),
        ("jwt_malformed", lambda claims: claims.pop("public_key")),
        ("jwt_malformed", lambda claims: claims.pop("exp")),
        ("jwt_malformed", lambda claims: claims.update(tcs=claims["tcs"].replace(".", ""))),
        ("jwt_malformed", lambda claims: claims.update(tcs=claims["tcs"] + ".00")),
        ("jwt_malformed", lambda claims: claims.update(tcs="." + claims["tcs"].split(".")[1])),
        ("jwt_malformed", lambda claims: claims.update(iss="C-x")),
        ("jwt_malformed", lambda claims: claims.update(iss="C-x.y")),
        ("jwt_malformed", lambda claims: claims.update(iat=claims["iat"] + 1)),
        ("jwt_malformed", lambda claims: claims.update(jti="x" * 27)),
        ("jwt_malformed", lambda claims: claims.update(exp=claims["issexp"] + 1)),
        ("jwt_bad_signature", lambda claims: claims.update(jti=claims["jti"][:-1] + "0")),
        ("jwt_bad_signature", lambda claims: claims.update(tcs=claims["tcs"][:-128] + "0" * 128)),
        ("jwt_bad_signature", lambda claims: claims.update(tcs="0" * 128 + claims["tcs"][128:])),
        ("jwt_bad_signature", lambda claims: claims.update(tcs="xyz" + claims["tcs"][128:])),
        ("jwt_bad_signature", lambda claims: claims.update(iss=claims["iss"].replace(".", "0."))),
        ("jwt_wrong_purpose", lambda claims: claims.update(purpose="choria_client_id")),
        ("jwt_expired", lambda claims: claims.update(exp=RECORDED - 100)),
        ("jwt_not_yet_valid", lambda claims: claims.update(nbf=RECORDED + 100)),
        ("jwt_malformed", lambda claims: claims.update(permissions=["streams"])),
        ("jwt_malformed", lambda claims: claims.update(permissions={"streams": "yes"})),
    )

    def signed(self, claims: dict[str, Any]) -> str:
        return sign(claims, SigningKey(Ed25519PrivateKey.from_private_bytes(bytes.fromhex(SIGNER_SEED))))

    def test_unchanged_it_is_good(self) -> None:
        assert self.signed(chained()) == recorded_token("issued-server")

    @pytest.mark.parametrize(("reason", "violate"), VIOLATIONS)
    def test_each_alone(self, reason: str, violate: Callable[[dict[str, Any]], object]) -> None:
        claims = chained()
        violate(claims)
        assert refused(self.signed(claims), now=RECORDED).reason == reason

    @settings(max_examples=100, deadline=None)
    @given(st.sets(st.integers(0, len(VIOLATIONS) - 1), max_size=3))
    def test_accepted_if_and_only_if_nothing_is_wrong(self, wrong: set[int]) -> None:
        claims = chained()
        for index in sorted(wrong, reverse=True):
            if {"tcs", "exp", "issexp"} <= claims.keys():
                self.VIOLATIONS[index][1](claims)
        token = self.signed(claims)
        reason = reason_of(lambda: verify_server_token(token, organization().public, now=RECORDED))
        assert (reason == "accepted") is (not wrong)

    def test_an_issuer_can_not_make_itself_one(self) -> None:
        """The chain is good, and the token is signed by somebody else than the issuer it names."""
        assert refused(sign(chained(), seeded(9)), now=RECORDED).reason == "jwt_bad_signature"
        assert refused(sign(chained(), organization()), now=RECORDED).reason == "jwt_bad_signature"

    def test_another_organization(self) -> None:
        assert refused(recorded_token("issued-server"), seeded(1), RECORDED).reason == "jwt_bad_signature"
        with pytest.raises(TrustError, match="can't be checked with an RSA key"):
            verify_server_token(recorded_token("issued-server"), rsa_verifier(), now=RECORDED)

    def test_a_chain_without_a_chain_issuer(self) -> None:
        claims = payload_of(recorded_token("broker-server"))
        for change in ({"tcs": "a.b"}, {"tcs": "a.b", "iss": "I-x"}):
            assert refused(sign(claims | change, organization()), now=RECORDED).reason == "jwt_malformed"

    @given(st.text())
    def test_no_text_is_too_odd(self, text: str) -> None:
        assert reason_of(lambda: verify_server_token(text, organization().public, now=NOW)) != "accepted"
