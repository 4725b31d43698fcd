"""Reading one layer: each way it can be wrong is one BadReply that names the place."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.choria.encoding import Layer, b64, dumps, shown
from provisioner.errors import BadReply

unicode = st.text(st.characters(codec="utf-8"))
LAYER = {
    "text": "t",
    "empty": "",
    "int": 3,
    "bool": True,
    "null": None,
    "list": ["a"],
    "object": {"k": 1},
    "float": 1.5,
}


def test_getters_give_what_is_there() -> None:
    layer = Layer(LAYER | {"data": "AQI=", "wrapped": "AQ\r\nI=", "strings": ["a", "b"]}, "thing")
    assert layer.text("empty") == ""
    assert layer.filled("text") == "t"
    assert layer.optional_text("null") == layer.optional_text("absent") == ""
    assert layer.integer("int") == 3
    assert layer.base64("data") == layer.base64("wrapped") == b"\x01\x02"
    assert layer.layer("object").integer("k") == 1
    assert layer.texts("strings") == ("a", "b")
    assert layer.mapping("object") == {"k": 1}
    assert layer.mapping("null") == layer.mapping("absent") == {}
    assert "text" in layer
    assert "absent" not in layer


@pytest.mark.parametrize(
    ("getter", "key", "message"),
    [
        ("text", "int", "int of the thing is int, not text"),
        ("text", "absent", "absent of the thing is missing, not text"),
        ("text", "object", "object of the thing is an object, not text"),
        ("filled", "empty", "empty of the thing is empty"),
        ("optional_text", "list", "list of the thing is an array, not text"),
        ("integer", "bool", "bool of the thing is bool, not an integer"),
        ("integer", "float", "float of the thing is float, not an integer"),
        ("integer", "text", "text of the thing is text, not an integer"),
        ("base64", "text", "text of the thing is not base64"),
        ("layer", "null", "the null of the thing is not a JSON object"),
        ("objects", "object", "object of the thing is an object, not an array"),
        ("mapping", "list", "list of the thing is an array, not an object"),
    ],
)
def test_getters_refuse_another_type(getter: str, key: str, message: str) -> None:
    with pytest.raises(BadReply) as caught:
        getattr(Layer(LAYER, "thing"), getter)(key)
    assert str(caught.value) == message


def test_texts_refuses_a_member_that_is_none() -> None:
    with pytest.raises(BadReply, match="has a member that is not text"):
        Layer({"k": ["a", 1]}, "thing").texts("k")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the thing is not JSON: Expecting value at character 0"),
        (b"\xff", "the thing is not JSON: not UTF-8 at byte 0"),
        (b"[]", "the thing is not a JSON object"),
        (b"null", "the thing is not a JSON object"),
        (b"[" * 5000 + b"]" * 5000, "the thing is not JSON: nested too deep"),
        (b" " * 101 * 100, "the thing has 10100 bytes, more than the 10000 that are read"),
    ],
)
def test_decode_refuses(data: bytes, message: str) -> None:
    with pytest.raises(BadReply) as caught:
        Layer.decode(data, "thing", limit=10_000)
    assert str(caught.value) == message


def test_limits_are_inclusive() -> None:
    assert "k" in Layer.decode(b'{"k":1}', "thing", limit=7)
    with pytest.raises(BadReply, match="has 7 bytes, more than the 6"):
        Layer.decode(b'{"k":1}', "thing", limit=6)
    assert shown("x" * 80) == repr("x" * 80)
    assert shown("x" * 81) == repr("x" * 80 + "...")


def test_protocol_is_shown_short_and_escaped() -> None:
    with pytest.raises(BadReply) as caught:
        Layer({"protocol": "\x1b[31m" + "x" * 500}, "thing").require_protocol("right")
    assert str(caught.value) == "the thing is '\\x1b[31m" + "x" * 75 + "...', not 'right'"
    assert shown("ä") == "'\\xe4'"


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | unicode,
        lambda inner: st.lists(inner) | st.dictionaries(unicode, inner),
    )
)
def test_dumps_is_json_without_html(value: Any) -> None:
    for text in (dumps({"value": value}), dumps({"value": value}, sort_keys=True)):
        assert not set("<>&\u2028\u2029") & set(text)
        assert json.loads(text) == {"value": value}


def test_sorting_is_at_every_level() -> None:
    assert dumps({"b": {"d": 1, "c": 2}, "a": 3}, sort_keys=True) == '{"a":3,"b":{"c":2,"d":1}}'
    assert dumps({"b": 1, "a": 2}) == '{"b":1,"a":2}'


def test_b64_has_padding() -> None:
    assert b64(b"\xfb\xff") == "+/8="
