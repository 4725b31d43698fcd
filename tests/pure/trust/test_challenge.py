"""The Ed25519 challenge."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provisioner.errors import TrustError
from provisioner.trust.challenge import fresh_nonce, verify_challenge
from tests.pure.trust.material import ed25519_key, reason_of, recorded_inputs

# wire-protocol 7.3: seed 32 x 0x03
PUBLIC = "ed4928c628d1c2c6eae90338905995612959273a5c63f93636c14614ac8737d1"
NONCE = "0123456789abcdef0123456789abcdef"
SIGNATURE = (
    "f8d5b69737f1ab3df6282eca4f10739ff9f8c78a8440d1ff25ff2a41ddc38643"
    "e00fb9d0413a48b69fc8088491deb16e97b92baef0a3f59fe68ff43732777e0c"
)


def test_the_specifications_example() -> None:
    assert verify_challenge(PUBLIC, SIGNATURE, NONCE) == PUBLIC
    assert verify_challenge(PUBLIC.upper(), SIGNATURE.upper(), NONCE) == PUBLIC


def test_a_nonce_is_fresh_and_of_the_references_form() -> None:
    nonces = {fresh_nonce() for _ in range(100)}
    assert len(nonces) == 100
    assert all(len(nonce) == 32 and set(nonce) <= set("0123456789abcdef") for nonce in nonces)


def test_recorded_signatures_are_no_answer_to_another_nonce() -> None:
    for _, told in recorded_inputs("v2"):
        answer = told["ed25519_pubkey"]
        with pytest.raises(TrustError) as caught:
            verify_challenge(answer["public_key"], answer["signature"], NONCE)
        assert caught.value.reason == "challenge_failed"


@pytest.mark.parametrize(
    ("public", "signature", "words"),
    [
        ("", SIGNATURE, "public key is not 32 bytes"),
        (PUBLIC[:-2], SIGNATURE, "public key is not 32 bytes"),
        (PUBLIC + "00", SIGNATURE, "public key is not 32 bytes"),
        (PUBLIC[:-1] + "g", SIGNATURE, "public key is not 32 bytes"),
        (PUBLIC, "", "signature of the nonce is not 64 bytes"),
        (PUBLIC, SIGNATURE[:-2], "signature of the nonce is not 64 bytes"),
        (PUBLIC, SIGNATURE[:-2] + "\n0", "signature of the nonce is not 64 bytes"),
        (PUBLIC, "00" * 64, "is not signed by the Ed25519 key"),
    ],
)
def test_refused(public: str, signature: str, words: str) -> None:
    with pytest.raises(TrustError, match=words) as caught:
        verify_challenge(public, signature, NONCE)
    assert caught.value.reason == "challenge_failed"


SMALL_ORDER = (
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0100000000000000000000000000000000000000000000000000000000000000",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
)


@pytest.mark.parametrize("public", SMALL_ORDER)
def test_a_key_of_small_order_is_refused_as_anybody_can_sign_with_it(public: str) -> None:
    """With the neutral element as key and R, and S = 0, the equation holds for every message."""
    for r in SMALL_ORDER:
        with pytest.raises(TrustError):
            verify_challenge(public, r + "00" * 32, NONCE)


VIOLATIONS: dict[str, Callable[[list[str]], None]] = {
    "another nonce": lambda answer: answer.__setitem__(2, "f" * 32),
    "another key": lambda answer: answer.__setitem__(0, ed25519_key().public_key().public_bytes_raw().hex()),
    "a short signature": lambda answer: answer.__setitem__(1, answer[1][:-2]),
    "a changed signature": lambda answer: answer.__setitem__(1, ("0" if answer[1][0] != "0" else "1") + answer[1][1:]),
}


@settings(deadline=None)
@given(st.sets(st.sampled_from(sorted(VIOLATIONS))))
def test_accepted_if_and_only_if_nothing_is_wrong(wrong: set[str]) -> None:
    answer = [PUBLIC, SIGNATURE, NONCE]
    for name in sorted(wrong):
        VIOLATIONS[name](answer)
    assert reason_of(lambda: verify_challenge(*answer)) == ("challenge_failed" if wrong else "accepted")


@settings(deadline=None)
@given(st.text() | st.just(PUBLIC) | st.binary().map(bytes.hex), st.text() | st.binary(min_size=64).map(bytes.hex))
def test_no_answer_is_too_odd(public: str, signature: str) -> None:
    assert reason_of(lambda: verify_challenge(public, signature, NONCE)) == "challenge_failed"
