"""Provisioning tokens from strangers: accepted if nothing is wrong, and only then; only our error escapes."""

import json
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from provisioner import strictjson
from provisioner.errors import TrustError
from provisioner.trust.jws import MAX_TOKEN, sign, unverified_claims, verify_signature
from provisioner.trust.keys import ed25519_verifier
from provisioner.trust.tokens import verify_provisioning_token
from tests.pure.trust.material import (
    GOOD,
    NOW,
    SIGNER,
    VERIFIER,
    payload_of,
    reason_of,
    rsa_verifier,
    seeded,
    segment,
    signed,
)

VIOLATIONS: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "expired": (lambda claims: claims.update(exp=NOW - 1000), "jwt_expired"),
    "early": (lambda claims: claims.update(nbf=NOW + 1000), "jwt_not_yet_valid"),
    "purpose": (lambda claims: claims.update(purpose="choria_server"), "jwt_wrong_purpose"),
    "type": (lambda claims: claims.update(chs="true"), "jwt_malformed"),
    "chain": (lambda claims: claims.update(tcs="x"), "jwt_malformed"),
    "issuer expired": (lambda claims: claims.update(issexp=NOW - 1000), "jwt_expired"),
}
SPOILERS: dict[str, tuple[Callable[[str], str], str]] = {
    "signature": (
        lambda token: token[:-10] + ("A" if token[-10] != "A" else "B") + token[-9:],
        "jwt_bad_signature",
    ),
    "signer": (lambda token: sign(payload_of(token), seeded(9)), "jwt_bad_signature"),
    "payload": (lambda token: _swap(token, 1, json.dumps({**payload_of(token), "cht": "x"})), "jwt_bad_signature"),
    "none": (lambda token: _swap(token, 0, '{"alg":"none"}'), "jwt_bad_algorithm"),
    "twice": (lambda token: _swap(token, 0, '{"alg":"EdDSA","alg":"EdDSA"}'), "jwt_malformed"),
    "junk": (lambda token: token + "=", "jwt_malformed"),
    "length": (lambda token: token + "A" * MAX_TOKEN, "jwt_malformed"),
}


def _encodes(content: bytes | str) -> bool:
    try:
        return isinstance(content, bytes) or bool(content.encode() is not None)
    except UnicodeEncodeError:
        return False


def _swap(token: str, index: int, content: str) -> str:
    parts = token.split(".")
    parts[index] = segment(content)
    return ".".join(parts)


@settings(max_examples=200, deadline=None)
@given(st.sets(st.sampled_from(sorted(VIOLATIONS))), st.none() | st.sampled_from(sorted(SPOILERS)))
def test_accepted_if_and_only_if_nothing_is_wrong(wrong: set[str], spoilt: str | None) -> None:
    claims = dict(GOOD)
    for name in wrong:
        VIOLATIONS[name][0](claims)
    token = sign(claims, SIGNER)
    expected = {VIOLATIONS[name][1] for name in wrong} or {"accepted"}
    if spoilt:
        spoil, reason = SPOILERS[spoilt]
        token, expected = spoil(token), {reason}
    assert reason_of(lambda: verify_provisioning_token(token, VERIFIER, now=NOW)) in expected


@settings(max_examples=300, deadline=None)
@given(st.text() | st.from_regex(re.compile(r"[\w-]{0,40}\.[\w-]{0,40}\.[\w-]{0,40}", re.ASCII), fullmatch=True))
def test_no_text_is_too_odd(text: str) -> None:
    for call in (
        partial(verify_provisioning_token, text, VERIFIER, now=NOW),
        partial(verify_provisioning_token, text, rsa_verifier(), now=NOW),
        partial(verify_signature, text, VERIFIER),
        partial(unverified_claims, text),
    ):
        reason_of(call)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200) | st.text(max_size=200), st.binary(max_size=200) | st.text(max_size=200))
def test_no_content_is_too_odd_even_when_signed(header: bytes | str, payload: bytes | str) -> None:
    ed25519 = Ed25519PrivateKey.from_private_bytes(bytes([7]) * 32)
    for first in (segment(header) if _encodes(header) else "e30", segment('{"alg":"EdDSA"}')):
        text = f"{first}.{segment(payload) if _encodes(payload) else 'e30'}"
        token = f"{text}.{segment(ed25519.sign(text.encode()))}"
        assert reason_of(partial(verify_provisioning_token, token, VERIFIER, now=NOW)) != "accepted"


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from([*GOOD, "aud", "tcs", "issexp", "ou", "v2"]), JSON_VALUES))
def test_no_claim_is_too_odd(odd: dict[str, Any]) -> None:
    token = signed('{"alg":"EdDSA"}', json.dumps({**GOOD, **odd}))
    try:
        claims = verify_provisioning_token(token, VERIFIER, now=NOW)
    except TrustError:
        return
    assert strictjson.loads(strictjson.dumps(claims)) == claims


def test_a_key_that_is_no_point_verifies_nothing() -> None:
    for public in ("00" * 32, "ff" * 32, "02" + "00" * 31):
        assert (
            reason_of(partial(verify_provisioning_token, sign(GOOD, SIGNER), ed25519_verifier(public), now=NOW))
            == "jwt_bad_signature"
        )


def test_the_text_of_a_refused_token_is_not_in_the_message() -> None:
    token = sign({**GOOD, "cht": "very-secret"}, seeded(9))
    with pytest.raises(TrustError) as caught:
        verify_provisioning_token(token, VERIFIER, now=NOW)
    assert "very-secret" not in str(caught.value)
    assert token.split(".")[1] not in str(caught.value)
