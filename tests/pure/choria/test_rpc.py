"""RPC bodies, and which refusals are worth asking again."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.choria import rpc
from provisioner.choria.rpc import RPCReply, RPCRequest, Status
from provisioner.errors import BadReply, Locked, RemoteRefusal

objects = st.dictionaries(st.text(st.characters(codec="utf-8")), st.integers() | st.text(st.characters(codec="utf-8")))


def test_request_sorts_its_data_as_the_reference_client_does() -> None:
    assert rpc.encode_rpc_request("choria_provision", "gencsr", {"token": "t", "cn": "n1"}) == (
        b'{"agent":"choria_provision","action":"gencsr","data":{"cn":"n1","token":"t"}}'
    )


def test_reply_keeps_the_order_of_its_data() -> None:
    assert rpc.encode_rpc_reply("jwt", {"jwt": "x", "ecdh_public": "y"}) == (
        b'{"action":"jwt","statuscode":0,"statusmsg":"OK","data":{"jwt":"x","ecdh_public":"y"}}'
    )
    assert rpc.encode_rpc_reply("", {}, statuscode=Status.INVALID_DATA, statusmsg="no") == (
        b'{"action":"","statuscode":4,"statusmsg":"no","data":{}}'
    )


@given(objects, st.integers(0, 255))
def test_round_trips(data: dict[str, Any], code: int) -> None:
    assert rpc.decode_rpc_request(rpc.encode_rpc_request("a", "b", data)) == RPCRequest("a", "b", data)
    encoded = rpc.encode_rpc_reply("b", data, statuscode=code, statusmsg="words")
    assert rpc.decode_rpc_reply(encoded) == RPCReply("b", code, "words", data)


values = st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.none())
bodies = st.dictionaries(st.sampled_from(("action", "statuscode", "statusmsg", "data", "agent")), values)


@given(st.binary() | bodies.map(json.dumps).map(str.encode))
def test_any_bytes_give_a_value_or_bad_reply(payload: bytes) -> None:
    for decode in (rpc.decode_rpc_request, rpc.decode_rpc_reply):
        try:
            decode(payload)
        except BadReply as error:
            assert str(error).isprintable()  # noqa: PT017 - either outcome is right


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"pong", "the RPC reply is not JSON"),
        (b"{}", "statuscode of the RPC reply is missing"),
        (b'{"statuscode":"0"}', "statuscode of the RPC reply is text"),
        (b'{"statuscode":true}', "statuscode of the RPC reply is bool"),
        (b'{"statuscode":0.0}', "statuscode of the RPC reply is float"),
        (b'{"statuscode":256}', "not within 0 to 255"),
        (b'{"statuscode":-1}', "not within 0 to 255"),
        (b'{"statuscode":0,"data":[]}', "data of the RPC reply is an array"),
        (b'{"statuscode":0,"statusmsg":1}', "statusmsg of the RPC reply is int"),
        (b'{"statuscode":0,"action":{}}', "action of the RPC reply is an object"),
    ],
)
def test_replies_that_are_refused(payload: bytes, message: str) -> None:
    with pytest.raises(BadReply, match=message):
        rpc.decode_rpc_reply(payload)


def test_missing_data_is_an_empty_object() -> None:
    assert rpc.decode_rpc_reply(b'{"statuscode":0,"data":null}') == RPCReply("", 0, "", {})
    assert rpc.decode_rpc_request(b'{"agent":"a","action":"b"}') == RPCRequest("a", "b", {})


def test_words_are_short_and_on_one_line() -> None:
    reply = rpc.decode_rpc_reply(
        json.dumps({"statuscode": 1, "statusmsg": "a\nb\x1b[31m\u202e\x00é" + "x" * 9999}).encode()
    )
    assert reply.statusmsg.startswith("a b [31m  éxxx")
    assert reply.statusmsg.endswith("x...")
    assert len(reply.statusmsg) == rpc.MAX_STATUSMSG
    assert reply.statusmsg.isprintable()


def test_repr_shows_no_data() -> None:
    assert "s3cret" not in repr(RPCRequest("a", "b", {"token": "s3cret"}))
    assert "s3cret" not in repr(RPCReply("b", 0, "OK", {"token": "s3cret"}))


def test_ok_passes() -> None:
    rpc.raise_for_status(RPCReply("jwt", 0, "anything", {}))


@pytest.mark.parametrize(
    ("code", "text", "can_retry"),
    [
        (1, "Incorrect provision token supplied", False),
        (1, "Cannot reconfigure a server that is not in provisioning mode", False),
        (1, "Cannot restart a server that is not in provisioning mode or with no token set", False),
        (1, "Cannot shutdown a server that is not in provisioning mode or with no token set", False),
        (1, "Cannot update a server that is not in provisioning mode", False),
        (1, "Server is already in provisioning mode, cannot enable provisioning mode again", False),
        (1, "No Provisioning JWT file has been configured", False),
        (1, "Provisioning JWT file does not exist", False),
        (1, "Cannot determine where to store secure data, no configure file given", False),
        (1, "Version updates is not enabled in the configuration", False),
        (1, "Did not receive any configuration to write, cannot write a empty configuration file", False),
        (1, "EDCH Public Key not supplied while providing a private key", False),
        (1, "Could not decode configuration data: x", False),
        (1, "Could not write config: generated configuration could not be parsed: x", False),
        (1, "TLS Setup Failed: could not decrypt private key: bad key received", False),
        (1, 'Could not save Action Policies: expected "x" to have .policy extension', False),
        (1, 'Could not save Open Policy Agent Policies: expected "x" to have .rego extension', False),
        (1, "Configuration /etc/choria/server.cfg enables provisioning, restart cannot continue", False),
        (1, "Configuration /etc/choria/server.cfg could not be parsed, restart cannot continue: x", False),
        (2, "Unknown action x for agent y", False),
        (3, "", False),
        (4, "Validation failed: x", False),
        (1, "Could not read Provisioning JWT: x", True),
        (1, "Could not save Action Policies: disk full", True),
        (1, "TLS Setup Failed: disk full", True),
        (1, "Update to version 1 failed, release rolled back: x", True),
        (1, "Configuration", True),
        (5, "", True),
        (77, "", True),
    ],
)
def test_refusals(code: int, text: str, can_retry: bool) -> None:
    with pytest.raises(RemoteRefusal) as caught:
        rpc.raise_for_status(RPCReply("x", code, text, {}))
    assert not isinstance(caught.value, Locked)
    assert (caught.value.code, caught.value.can_retry, caught.value.reason) == (code, can_retry, "refused")
    assert caught.value.text == (text or f"status code {code} without a message")


def test_the_lock_is_its_own_kind() -> None:
    with pytest.raises(Locked) as caught:
        rpc.raise_for_status(RPCReply("jwt", 1, "Could not obtain provisioning lock", {}))
    assert caught.value.reason == "locked"
