"""Provisioning tokens: the recorded ones are believed, and nothing that differs in what matters."""

import hashlib
import hmac
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization

from provisioner import strictjson
from provisioner.errors import TrustError
from provisioner.trust.claims import LAST_SECOND, clock
from provisioner.trust.jws import MAX_TOKEN, sign
from provisioner.trust.keys import VerificationKey
from provisioner.trust.tokens import verify_provisioning_token
from tests.pure.trust.material import (
    GOOD,
    KEYS,
    NOW,
    RECORDED,
    SIGNER,
    VERIFIER,
    organization,
    payload_of,
    reason_of,
    recorded_inputs,
    recorded_token,
    rsa_key,
    rsa_signer,
    rsa_verifier,
    segment,
    signed,
)


def verified(claims: dict[str, Any], now: float = NOW) -> dict[str, Any]:
    return verify_provisioning_token(sign(claims, SIGNER), VERIFIER, now=now)


def refused(token: str, key: VerificationKey = VERIFIER, now: float = NOW) -> TrustError:
    with pytest.raises(TrustError) as caught:
        verify_provisioning_token(token, key, now=now)
    return caught.value


class TestRecordings:
    @pytest.mark.parametrize(
        ("version", "key"), [("v1", rsa_verifier()), ("v2", organization().public)], ids=["rsa", "ed25519"]
    )
    def test_claims_are_byte_for_byte_what_the_reference_told_its_helper(
        self, version: str, key: VerificationKey
    ) -> None:
        claims = verify_provisioning_token(recorded_token(f"provisioning-{version}"), key, now=RECORDED)
        assert claims["cht"] == "s3cret"
        inputs = recorded_inputs(version)
        assert len(inputs) == {"v1": 2, "v2": 5}[version]
        for line, _ in inputs:
            assert line.endswith(f',"jwt":{strictjson.dumps(claims)}}}')

    def test_each_is_bound_to_its_kind_of_key(self) -> None:
        assert refused(recorded_token("provisioning-v1"), organization().public).reason == "jwt_bad_algorithm"
        assert refused(recorded_token("provisioning-v2"), rsa_verifier()).reason == "jwt_bad_algorithm"

    def test_and_to_its_key(self) -> None:
        other = VerificationKey(rsa_key().public_key())
        assert refused(recorded_token("provisioning-v1"), other).reason == "jwt_bad_signature"
        assert refused(recorded_token("provisioning-v2"), VERIFIER).reason == "jwt_bad_signature"

    def test_another_kind_of_token_by_the_same_signer_is_none(self) -> None:
        error = refused(recorded_token("signer"), organization().public, RECORDED)
        assert error.reason == "jwt_wrong_purpose"
        assert str(error) == "the token's purpose is 'choria_client_id', which is not choria_provisioning"

    def test_what_we_sign_is_byte_for_byte_what_was_recorded(self) -> None:
        for name, key in (("provisioning-v1", rsa_signer()), ("provisioning-v2", organization())):
            assert sign(payload_of(recorded_token(name)), key) == recorded_token(name)

    def test_blanks_around_the_token_do_not_count(self) -> None:
        token = recorded_token("provisioning-v2")
        assert verify_provisioning_token(f"\n {token}\r\n", organization().public, now=RECORDED)["v2"] is True


class TestAlgorithm:
    """The key decides, never the token."""

    def test_each_rsa_algorithm_counts_with_an_rsa_key(self) -> None:
        signer = rsa_signer()
        for algorithm in ("RS256", "RS384", "RS512"):
            token = jwt.encode(GOOD, signer.key, algorithm=algorithm)
            assert verify_provisioning_token(token, signer.public, now=NOW)["cht"] == "s3cret"
        assert refused(jwt.encode(GOOD, signer.key, algorithm="PS256"), signer.public).reason == "jwt_bad_algorithm"

    @pytest.mark.parametrize("algorithm", ["none", "None", "none ", "", "HS256", "ES256", "RS256", "eddsa", "Ed25519"])
    def test_others_do_not_with_ed25519(self, algorithm: str) -> None:
        token = signed(json.dumps({"alg": algorithm, "typ": "JWT"}), json.dumps(GOOD))
        assert refused(token).reason == "jwt_bad_algorithm"

    @pytest.mark.parametrize("header", ['{"typ":"JWT"}', '{"alg":null}', '{"alg":["EdDSA"]}', '{"alg":{"a":1}}'])
    def test_nor_does_none_at_all(self, header: str) -> None:
        assert refused(signed(header, json.dumps(GOOD))).reason == "jwt_bad_algorithm"

    def test_an_unsigned_token(self) -> None:
        text = segment('{"alg":"none"}') + "." + segment(json.dumps(GOOD))
        assert refused(f"{text}.AAAA").reason == "jwt_bad_algorithm"
        assert refused(f"{text}.").reason == "jwt_malformed"

    def test_our_public_key_is_no_shared_secret(self) -> None:
        text = segment('{"alg":"HS256","typ":"JWT"}') + "." + segment(json.dumps(GOOD))
        public = rsa_verifier().key
        assert not isinstance(public, type(VERIFIER.key))
        pkix = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        for secret in ((KEYS / "jwt-signer-rsa.pem").read_bytes(), pkix):
            token = f"{text}.{segment(hmac.digest(secret, text.encode(), hashlib.sha256))}"
            assert refused(token, rsa_verifier()).reason == "jwt_bad_algorithm"

    def test_a_header_that_says_two_things_says_nothing(self) -> None:
        for header in ('{"alg":"none","alg":"EdDSA"}', '{"alg":"EdDSA","typ":"JWT","alg":"EdDSA"}'):
            error = refused(signed(header, json.dumps(GOOD)))
            assert (error.reason, str(error)) == (
                "jwt_malformed",
                "the token's header is not JSON: an object has the same key twice",
            )

    def test_the_message_says_both_sides(self) -> None:
        error = refused(signed('{"alg":"RS256\\u001b[31m"}', "{}"))
        assert str(error) == (
            "the token says it is signed with 'RS256\\x1b[31m'; the Ed25519 key that is configured goes with EdDSA only"
        )


class TestShape:
    @pytest.mark.parametrize("token", ["", " \n"])
    def test_missing(self, token: str) -> None:
        assert refused(token).reason == "jwt_missing"

    @pytest.mark.parametrize(
        "token",
        [
            "hello",
            "a.b",
            "a.b.c.d",
            "..",
            "a.b.c",
            "é.b.c",
            "e30.e30.e30=",
            "e30 .e30.e30",
            f"{segment('[]')}.e30.AAAA",
            f"{segment('nope')}.e30.AAAA",
            "_w.e30.AAAA",
            "A" * (MAX_TOKEN + 1),
        ],
    )
    def test_what_is_no_token(self, token: str) -> None:
        assert refused(token).reason == "jwt_malformed"

    def test_its_length_is_bounded(self) -> None:
        token = sign({**GOOD, "extensions": {"text": "x" * 11_500}}, SIGNER)
        assert len(token) <= MAX_TOKEN
        assert verify_provisioning_token(token, VERIFIER, now=NOW)["extensions"] == {"text": "x" * 11_500}
        token = sign({**GOOD, "extensions": {"text": "x" * 13_000}}, SIGNER)
        assert len(token) > MAX_TOKEN
        assert refused(token).reason == "jwt_malformed"

    def test_a_header_that_asks_for_more(self) -> None:
        for header in (
            '{"alg":"EdDSA","crit":["b64"],"b64":false}',
            '{"alg":"EdDSA","b64":true}',
            '{"alg":"EdDSA","crit":[]}',
        ):
            assert refused(signed(header, json.dumps(GOOD))).reason == "jwt_malformed"

    def test_a_header_that_the_library_refuses(self) -> None:
        assert refused(signed('{"alg":"EdDSA","kid":7}', json.dumps(GOOD))).reason == "jwt_malformed"

    def test_a_signature_has_one_spelling(self) -> None:
        token = sign(GOOD, SIGNER)
        assert token[-1] in "AQgw", "the last character carries two bits"
        respelt = token[:-1] + {"A": "B", "Q": "R", "g": "h", "w": "x"}[token[-1]]
        assert refused(respelt).reason == "jwt_malformed"

    @pytest.mark.parametrize("payload", ["[]", "null", '"text"', "{", "", '{"exp":NaN}', '{"cht":"\\ud800"}'])
    def test_a_payload_that_is_no_object(self, payload: str) -> None:
        assert refused(signed('{"alg":"EdDSA"}', payload)).reason == "jwt_malformed"

    @pytest.mark.parametrize(
        ("claim", "value"),
        [
            ("cht", 1),
            ("cht", True),
            ("chs", "true"),
            ("chpd", 1),
            ("chu", ["a"]),
            ("extensions", []),
            ("extensions", "x"),
            ("purpose", 1),
            ("v2", "yes"),
            ("ou", {}),
            ("aud", 1),
            ("aud", [1]),
            ("exp", "1800000000"),
            ("exp", True),
            ("exp", -1),
            ("exp", NOW * 1000),
            ("nbf", []),
            ("iat", 10**30),
        ],
    )
    def test_a_claim_of_another_type(self, claim: str, value: object) -> None:
        error = refused(sign({**GOOD, claim: value}, SIGNER))
        assert error.reason == "jwt_malformed"
        assert f"the token's claim '{claim}' must be " in str(error)

    @pytest.mark.parametrize("number", ["1e999", "-1e999"])
    def test_a_number_that_is_infinite(self, number: str) -> None:
        for claim in (f'"exp":{number}', f'"extensions":{{"a":[{number}]}}'):
            token = signed('{"alg":"EdDSA"}', json.dumps(GOOD)[:-1] + f",{claim}}}")
            assert refused(token).reason == "jwt_malformed"

    def test_extensions_have_a_depth(self) -> None:
        deep: Any = 1
        for _ in range(32):
            deep = [deep]
        assert refused(sign({**GOOD, "extensions": {"a": deep}}, SIGNER)).reason == "jwt_malformed"
        assert verified({**GOOD, "extensions": {"a": deep[0]}})["extensions"] == {"a": deep[0]}
        bottomless = "[" * 5000 + "]" * 5000
        assert refused(signed('{"alg":"EdDSA"}', f'{{"extensions":{bottomless}}}')).reason == "jwt_malformed"


class TestClaims:
    def test_all_claims_of_the_reference_in_its_order(self) -> None:
        everything = {
            "cht": "t",
            "chs": True,
            "chu": "u",
            "chsrv": "d",
            "chpd": True,
            "chrd": "r",
            "chf": "f",
            "chusr": "n",
            "chpwd": "p",
            "extensions": {"b": [{"d": 1, "c": 2.5}], "a": None},
            "ou": "org",
            "v2": True,
            "update": True,
            "purpose": "choria_provisioning",
            "tcs": "x.y",
            "public_key": "00",
            "issexp": NOW + 10,
            "iss": "C-x.y",
            "sub": "choria_provisioning",
            "aud": ["one"],
            "exp": NOW + 20,
            "nbf": NOW,
            "iat": NOW,
            "jti": "id",
        }
        shuffled = dict(sorted(everything.items(), key=lambda item: hash(item[0])))
        claims = verified({**shuffled, "unknown": 1})
        everything["extensions"] = {"a": None, "b": [{"c": 2.5, "d": 1}]}
        assert json.dumps(claims) == json.dumps(everything)

    def test_what_is_empty_is_there_or_not_as_in_the_reference(self) -> None:
        empty = {"chu": "", "v2": False, "update": False, "iss": "", "aud": [], "ou": "", "extensions": {}, "exp": None}
        assert json.dumps(verified({**empty, "sub": "choria_provisioning"})) == (
            '{"cht": "", "chs": false, "chpd": false, "extensions": {}, "ou": "choria", "purpose": "",'
            ' "sub": "choria_provisioning"}'
        )

    def test_dates_are_whole_seconds_and_one_audience_is_a_list(self) -> None:
        claims = verified({**GOOD, "exp": NOW + 5.75, "nbf": 0, "aud": "me"})
        assert (claims["exp"], claims["nbf"], claims["aud"]) == (NOW + 5, 0, ["me"])

    @pytest.mark.parametrize(
        ("purpose", "sub", "reason"),
        [
            ("choria_provisioning", "", "accepted"),
            ("choria_provisioning", "anything", "accepted"),
            ("", "choria_provisioning", "accepted"),
            ("", "", "jwt_wrong_purpose"),
            ("", "choria_server", "jwt_wrong_purpose"),
            ("choria_server", "choria_provisioning", "jwt_wrong_purpose"),
            ("choria_client_id", "", "jwt_wrong_purpose"),
            ("Choria_Provisioning", "", "jwt_wrong_purpose"),
        ],
    )
    def test_purpose(self, purpose: str, sub: str, reason: str) -> None:
        assert reason_of(lambda: verified({**GOOD, "purpose": purpose, "sub": sub})) == reason

    @pytest.mark.parametrize(
        ("issuer", "issexp", "reason"),
        [
            ("C-a.b", NOW + 1, "accepted"),
            ("C-a.b", NOW - 61, "jwt_expired"),
            ("C-a.b", None, "jwt_malformed"),
            ("I-a", NOW + 1, "jwt_malformed"),
            ("", NOW + 1, "jwt_malformed"),
        ],
    )
    def test_a_trust_chain_needs_its_chain_issuer(self, issuer: str, issexp: int | None, reason: str) -> None:
        claims = {**GOOD, "tcs": "x.y", "iss": issuer, "issexp": issexp}
        assert reason_of(lambda: verified(claims)) == reason


class TestTime:
    @pytest.mark.parametrize(
        ("exp", "nbf", "reason"),
        [
            (-30, None, "accepted"),
            (-59, None, "accepted"),
            (-60, None, "jwt_expired"),
            (-300, None, "jwt_expired"),
            (None, 30, "accepted"),
            (None, 60, "accepted"),
            (None, 61, "jwt_not_yet_valid"),
            (None, 3600, "jwt_not_yet_valid"),
            (None, None, "accepted"),
        ],
    )
    def test_a_minute_of_difference_is_allowed(self, exp: int | None, nbf: int | None, reason: str) -> None:
        claims = {key: value for key, value in GOOD.items() if key not in {"exp", "nbf", "iat"}}
        if exp is not None:
            claims["exp"] = NOW + exp
        if nbf is not None:
            claims |= {"nbf": NOW + nbf, "iat": NOW + nbf}
        assert reason_of(lambda: verified(claims)) == reason

    def test_fractions_of_our_clock_count(self) -> None:
        assert reason_of(lambda: verified({**GOOD, "exp": NOW}, now=NOW + 59.9)) == "accepted"
        assert reason_of(lambda: verified({**GOOD, "exp": NOW}, now=NOW + 60)) == "jwt_expired"

    def test_the_earlier_of_its_own_and_its_issuers_expiry_counts(self) -> None:
        assert reason_of(lambda: verified({**GOOD, "issexp": NOW - 100})) == "jwt_expired"
        assert reason_of(lambda: verified({**GOOD, "exp": NOW - 100, "issexp": NOW + 100})) == "jwt_expired"

    def test_the_message_names_both_clocks(self) -> None:
        assert str(refused(recorded_token("provisioning-v2"), organization().public, 1827495200)) == (
            "the token expired at 2027-11-29T13:31:37Z; here it is 2027-11-29T13:33:20Z"
            " (60 s of difference are allowed)"
        )
        assert str(refused(recorded_token("provisioning-v2"), organization().public, 1795950000)) == (
            "the token is valid from 2026-11-29T13:31:37Z on; here it is 2026-11-29T11:00:00Z"
            " (60 s of difference are allowed)"
        )

    def test_every_time_can_be_said(self) -> None:
        assert [clock(time) for time in (-5, 0, LAST_SECOND, 1e300)] == [
            "1970-01-01T00:00:00Z",
            "1970-01-01T00:00:00Z",
            "9999-12-31T23:59:59Z",
            "9999-12-31T23:59:59Z",
        ]
