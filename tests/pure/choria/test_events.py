"""Lifecycle events of both forms."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.choria.events import MAX_EVENT_BYTES, TYPES, Event, decode_event, encode_cloud, encode_native
from provisioner.errors import BadReply

EVENT = Event(
    "startup",
    "cb6f1dbc-d65b-49b9-907e-e4a51bee75f8",
    "n1.example.net",
    "provision_mode_server",
    1_700_000_000,
    "0.30.2",
)
NATIVE = (
    b'{"protocol":"io.choria.lifecycle.v1.startup","id":"cb6f1dbc-d65b-49b9-907e-e4a51bee75f8",'
    b'"identity":"n1.example.net","component":"provision_mode_server","timestamp":1700000000,"version":"0.30.2"}'
)
CLOUD = (
    b'{"specversion":"1.0","id":"cb6f1dbc-d65b-49b9-907e-e4a51bee75f8","source":"io.choria.lifecycle",'
    b'"type":"io.choria.lifecycle.v1.startup","subject":"n1.example.net","datacontenttype":"application/json",'
    b'"time":"2023-11-14T22:13:20Z","data":' + NATIVE + b"}"
)
unicode = st.text(st.characters(codec="utf-8"), max_size=20)


def test_both_forms_as_the_protocol_shows_them() -> None:
    assert encode_native(EVENT) == NATIVE
    assert encode_cloud(EVENT) == CLOUD
    assert decode_event(NATIVE) == decode_event(CLOUD) == EVENT
    assert EVENT.subject == "choria.lifecycle.event.startup.provision_mode_server"


def test_an_upgrade_names_both_versions() -> None:
    event = Event("upgraded", "id", "n1", "server", 0, "1", "2")
    assert json.loads(encode_native(event)) == {
        "protocol": "io.choria.lifecycle.v1.upgraded",
        "id": "id",
        "identity": "n1",
        "component": "server",
        "timestamp": 0,
        "version": "1",
        "new_version": "2",
    }


@given(
    st.builds(Event, st.sampled_from(TYPES), unicode, unicode, unicode, st.integers(0, 253402300799), unicode, unicode)
)
def test_round_trips(event: Event) -> None:
    assert decode_event(encode_native(event)) == event
    assert decode_event(encode_cloud(event)) == event


def test_the_last_second_that_has_a_name() -> None:
    assert decode_event(_native(timestamp=253402300799)).timestamp == 253402300799


def _native(**changes: Any) -> bytes:
    return json.dumps(json.loads(NATIVE) | changes).encode()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"x", "the event is not JSON"),
        (b" " * (MAX_EVENT_BYTES + 1), "more than the 65536 that are read"),
        (
            _native(protocol="choria:lifecycle:startup:1"),
            "the event is 'choria:lifecycle:startup:1', which is not known",
        ),
        (_native(protocol="io.choria.lifecycle.v1.nonsense"), "which is not known"),
        (_native(protocol="startup"), "which is not known"),
        (_native(protocol=1), "protocol of the event is int"),
        (_native(identity=None), "identity of the event is missing"),
        (_native(timestamp="now"), "timestamp of the event is text"),
        (_native(timestamp=-1), "timestamp of the event is out of range"),
        (_native(timestamp=253402300800), "timestamp of the event is out of range"),
        (_native(timestamp=10**30), "timestamp of the event is out of range"),
        (_native(version=3), "version of the event is int"),
        (json.dumps(json.loads(CLOUD) | {"data": None}).encode(), "data of the event is not a JSON object"),
        (json.dumps(json.loads(CLOUD) | {"source": "elsewhere"}).encode(), "protocol of the event is missing"),
        (json.dumps(json.loads(CLOUD) | {"specversion": "2.0"}).encode(), "protocol of the event is missing"),
        (json.dumps(json.loads(CLOUD) | {"data": json.loads(CLOUD)}).encode(), "protocol of the data of the event"),
    ],
)
def test_what_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(BadReply, match=message):
        decode_event(data)


values = st.none() | st.integers() | st.text() | st.just("io.choria.lifecycle.v1.startup")
events = st.dictionaries(st.sampled_from([*json.loads(CLOUD), *json.loads(NATIVE)]), values)


@given(st.binary() | events.map(json.dumps).map(str.encode))
def test_any_bytes_give_a_value_or_bad_reply(data: bytes) -> None:
    try:
        decode_event(data)
    except BadReply as error:
        assert str(error).isprintable()  # noqa: PT017 - either outcome is right
