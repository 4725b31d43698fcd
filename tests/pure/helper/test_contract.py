"""The helper contract: its input byte for byte as recorded, its answer field by field."""

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.errors import HelperBadReply
from provisioner.helper.contract import (
    MAX_MSG,
    HelperReply,
    ServerClaims,
    ServerPermissions,
    decode_reply,
    encode_input,
)
from provisioner.secret import Secret
from provisioner.trust.keys import load_verification_key
from provisioner.trust.tokens import verify_provisioning_token

FIXTURES = Path(__file__).parents[2] / "fixtures"
RECORDED = [
    line
    for name in ("helper-input-v1.jsonl", "helper-input-v2.jsonl")
    for line in (FIXTURES / name).read_bytes().splitlines()
]


def backwards(value: Any) -> Any:
    """The same object with its keys in the opposite order."""
    return dict(reversed(value.items())) if isinstance(value, dict) else value


def empty_input(**changes: Any) -> bytes:
    arguments: dict[str, Any] = {"identity": "", "csr": None, "ed25519_pubkey": None, "inventory": "", "jwt": None}
    return encode_input(**{**arguments, **changes})


# --- input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", RECORDED, ids=lambda line: json.loads(line)["identity"])
def test_input_is_byte_for_byte_as_recorded(line: bytes) -> None:
    told = json.loads(line)
    for key in ("csr", "ed25519_pubkey"):
        told[key] = backwards(told[key])
    assert encode_input(**backwards(told)) == line


@pytest.mark.parametrize(("version", "line"), [("v1", RECORDED[0]), ("v2", RECORDED[2])])
def test_verified_claims_are_told_as_recorded(version: str, line: bytes) -> None:
    keys = FIXTURES / "keys"
    setting = {"v1": str(keys / "jwt-signer-rsa.pem"), "v2": (keys / "issuer.public").read_text().strip()}[version]
    told = json.loads(line)
    token = (keys / f"provisioning-{version}.jwt").read_text()
    claims = verify_provisioning_token(token, load_verification_key(setting), now=told["jwt"]["iat"])
    assert encode_input(**{**told, "jwt": claims}) == line


def test_all_seven_recordings_are_there() -> None:
    assert len(RECORDED) == 7


def test_input_without_any_feature() -> None:
    assert empty_input(identity="n1", inventory='{"a":"<b>"}') == (
        b'{"identity":"n1","csr":null,"ed25519_pubkey":null,"inventory":"{\\"a\\":\\"\\u003cb\\u003e\\"}","jwt":null}'
    )


def test_input_escapes_what_go_escapes() -> None:
    text = empty_input(identity="<>&\u2028\u2029/\x7fé\n").decode()
    assert text.startswith('{"identity":"\\u003c\\u003e\\u0026\\u2028\\u2029/\x7fé\\n",')
    assert json.loads(text)["identity"] == "<>&\u2028\u2029/\x7fé\n"


def test_half_a_surrogate_pair_becomes_the_replacement_character() -> None:
    assert json.loads(empty_input(jwt={"extensions": {"a": "\ud800"}}))["jwt"]["extensions"] == {"a": "\ufffd"}


def test_only_known_keys_of_a_reply_are_told() -> None:
    told = json.loads(
        empty_input(
            csr={"csr": "x", "public_key": "y", "ssldir": "z", "more": "1"},
            ed25519_pubkey={"public_key": "k", "more": "1"},
        )
    )
    assert told["csr"] == {"csr": "x", "public_key": "y", "ssldir": "z"}
    assert told["ed25519_pubkey"] == {"public_key": "k", "directory": "", "signature": ""}


def test_extra_keys_come_last() -> None:
    assert empty_input(extra={"attempt": 2, "site": "lon"}).endswith(b',"jwt":null,"attempt":2,"site":"lon"}')


def test_nan_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        empty_input(jwt={"extensions": {"a": float("nan")}})


# --- answer --------------------------------------------------------------------------------------------------------


def test_every_field() -> None:
    answer = {
        "defer": True,
        "shutdown": True,
        "msg": "m",
        "key": "PRIVATE",
        "certificate": "c",
        "ca": "a",
        "ssldir": "/s",
        "server_claims": {
            "identity": "ignored",
            "collectives": ["one", "two"],
            "ou": "acme",
            "permissions": {"submission": True, "streams": False, "governor": True, "service_host": True},
            "pub_subjects": ["x.>"],
            "exp": 1700000000,
        },
        "configuration": {"loglevel": "warn"},
        "action_policies": {"a.policy": "p"},
        "opa_policies": {"b.rego": "r"},
        "upgrade": "0.29.0",
        "defer_for": "1h30m",
        "reason": "no-cmdb-entry",
    }
    assert decode_reply(json.dumps(answer).encode()) == HelperReply(
        defer=True,
        shutdown=True,
        msg="m",
        key=Secret("PRIVATE"),
        certificate="c",
        ca="a",
        ssldir="/s",
        server_claims=ServerClaims(
            collectives=("one", "two"),
            ou="acme",
            permissions=ServerPermissions(submission=True, governor=True, service_host=True),
            pub_subjects=("x.>",),
            exp=1700000000,
        ),
        configuration={"loglevel": "warn"},
        action_policies={"a.policy": "p"},
        opa_policies={"b.rego": "r"},
        upgrade="0.29.0",
        defer_for=5400.0,  # type: ignore[arg-type]
        reason="no-cmdb-entry",  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("text", ['{"configuration":{"a":"b"}}', ' {"configuration":{"a":"b"},"unknown":[1]}\n'])
def test_a_configuration_alone_is_an_answer(text: str) -> None:
    assert decode_reply(text.encode()) == HelperReply(configuration={"a": "b"})


def test_null_is_absent() -> None:
    nulls = dict.fromkeys(
        ["defer", "msg", "key", "server_claims", "configuration", "opa_policies", "defer_for", "reason", "upgrade"]
    )
    assert decode_reply(json.dumps(nulls).encode()) == HelperReply()
    claims = {"server_claims": {"collectives": None, "permissions": None, "exp": None, "ou": None}}
    assert decode_reply(json.dumps(claims).encode()) == HelperReply(server_claims=ServerClaims())


def test_null_in_a_map_is_an_empty_string_as_in_go() -> None:
    assert decode_reply(b'{"configuration":{"a":null}}').configuration == {"a": ""}


def test_keys_match_in_any_case_as_in_go() -> None:
    reply = decode_reply(b'{"DEFER":true,"Server_Claims":{"OU":"x","Permissions":{"STREAMS":true}}}')
    assert reply == HelperReply(
        defer=True, server_claims=ServerClaims(ou="x", permissions=ServerPermissions(streams=True))
    )


def test_keys_of_a_map_keep_their_case() -> None:
    assert decode_reply(b'{"configuration":{"A":"1","a":"2"}}').configuration == {"A": "1", "a": "2"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"defer":NaN}', "NaN is not JSON"),
        ('{"defer":Infinity}', "Infinity is not JSON"),
        ("", "at character 0"),
        ("oops", "at character 0"),
        ('{"defer":true}{"defer":true}', "Extra data at character 14"),
        ("[" * 10_000, "nested too deep"),
        ('{"defer":' * 10_000, "nested too deep"),
        ('{"server_claims":{"exp":' + "9" * 5000 + "}}", "too many digits"),
        ('{"msg":"\\ud800"}', "half of a surrogate pair"),
        ('{"configuration":{"a":"1","a":"2"}}', "the same key twice"),
        ('{"defer":false,"Defer":true}', "it has the key 'defer' twice"),
        ('"text"', "it is a string, must be an object"),
        ("[]", "it is an array, must be an object"),
        ("null", "it is null, must be an object"),
        ('{"defer":"false"}', "defer is a string, must be a boolean"),
        ('{"defer":0}', "defer is a number, must be a boolean"),
        ('{"shutdown":[]}', "shutdown is an array, must be a boolean"),
        ('{"msg":true}', "msg is a boolean, must be a string"),
        ('{"key":{}}', "key is an object, must be a string"),
        ('{"upgrade":1.5}', "upgrade is a number, must be a string"),
        ('{"configuration":[]}', "configuration is an array, must be an object"),
        ('{"configuration":{"a":1}}', "configuration has at 'a' a value that is a number, must be a string"),
        ('{"configuration":{"a\\u001b":{}}}', "has at 'a\\x1b' a value that is an object, must be a string"),
        ('{"action_policies":{"a":true}}', "action_policies has at 'a' a value that is a boolean"),
        ('{"opa_policies":{"a":[]}}', "opa_policies has at 'a' a value that is an array"),
        ('{"server_claims":[]}', "server_claims is an array, must be an object"),
        ('{"server_claims":{"collectives":"a"}}', "server_claims.collectives is a string, must be an array"),
        ('{"server_claims":{"collectives":[null]}}', "server_claims.collectives has a value that is null"),
        ('{"server_claims":{"permissions":{"streams":"yes"}}}', "server_claims.permissions.streams is a string"),
        ('{"server_claims":{"exp":true}}', "server_claims.exp is a boolean, must be a number"),
        ('{"server_claims":{"exp":-1}}', "server_claims.exp must be a Unix time in seconds"),
        ('{"server_claims":{"exp":1e300}}', "server_claims.exp must be a Unix time in seconds"),
        ('{"defer_for":60}', "defer_for is a number, must be a string"),
        ('{"defer_for":"soon"}', "defer_for must be a duration"),
        ('{"defer_for":"-1h"}', "defer_for must be from 0s to 30d"),
        ('{"defer_for":"1y"}', "defer_for must be from 0s to 30d"),
        ('{"reason":"two words"}', "reason must be one word"),
        ('{"reason":"x\\n"}', "reason must be one word"),
    ],
)  # fmt: skip
def test_refused(text: str, said: str) -> None:
    with pytest.raises(HelperBadReply) as caught:
        decode_reply(text.encode())
    assert said in str(caught.value)


def test_every_wrong_field_is_named() -> None:
    with pytest.raises(HelperBadReply) as caught:
        decode_reply(b'{"defer":1,"key":2,"server_claims":{"ou":3}}')
    assert str(caught.value) == (
        "its answer can't be used: defer is a number, must be a boolean; key is a number, must be a string; "
        "server_claims.ou is a number, must be a string"
    )


@pytest.mark.parametrize("text", [b'{"key":"PRIVATE', b'{"key":["PRIVATE"]}', b'{"configuration":{"a":["PRIVATE"]}}', b'{"key":"PRIVATE","msg":"\xff"}'])  # fmt: skip  # noqa: E501
def test_a_refusal_never_quotes_the_answer(text: bytes) -> None:
    with pytest.raises(HelperBadReply) as caught:
        decode_reply(text)
    assert "PRIVATE" not in f"{caught.value!r} {caught.value} {caught.value.__cause__!r} {caught.value.stderr!r}"
    assert caught.value.__suppress_context__


def test_what_is_not_json_is_told_by_length_hash_and_place() -> None:
    text = b'{"msg":"\xff"}'
    with pytest.raises(HelperBadReply) as caught:
        decode_reply(text)
    assert str(caught.value) == (
        f"its answer is not JSON: not UTF-8 at byte 8 (11 bytes, SHA-256 {hashlib.sha256(text).hexdigest()})"
    )


def test_no_secret_in_the_repr() -> None:
    reply = decode_reply(b'{"key":"PRIVATE","configuration":{"plugin.nats.pass":"PRIVATE"}}')
    assert reply.key.reveal() == "PRIVATE"
    assert "PRIVATE" not in repr(reply)


def test_msg_is_safe_to_log() -> None:
    reply = decode_reply(json.dumps({"msg": "a\x1b[31m\n\u202eb" + "c" * 5000}).encode())
    assert reply.msg.startswith("a\\x1b[31m\\n\\u202ebccc")
    assert len(reply.msg) == MAX_MSG + 1


def test_a_large_hostile_map_costs_one_complaint() -> None:
    text = json.dumps({"configuration": {str(n): n for n in range(80_000)}}).encode()
    with pytest.raises(HelperBadReply) as caught:
        decode_reply(text)
    assert len(str(caught.value)) < 200


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from([*HelperReply.__annotations__, *ServerClaims.__annotations__, "x"])


@given(st.dictionaries(names, json_values | st.dictionaries(names, json_values, max_size=3), max_size=4))
def test_any_json_is_an_answer_or_one_error(value: dict[str, Any]) -> None:
    try:
        reply = decode_reply(json.dumps(value).encode())
    except HelperBadReply:
        return
    assert reply.defer is (value.get("defer") is True)
    assert reply.key.reveal() == (value.get("key") or "")


@given(st.binary(max_size=200))
def test_any_bytes_are_an_answer_or_one_error(data: bytes) -> None:
    with suppress(HelperBadReply):
        decode_reply(data)
