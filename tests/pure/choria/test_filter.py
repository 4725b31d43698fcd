"""Filters: reading them, and matching as a server does."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.choria import filter as filters
from provisioner.choria.encoding import Layer
from provisioner.choria.filter import Fact, Filter
from provisioner.errors import BadReply

AGENTS = ("choria_provision", "choria_util", "discovery", "rpcutil")
EMPTY: dict[str, Any] = {"fact": [], "cf_class": [], "agent": [], "identity": [], "compound": []}
FACTS = {"os": {"family": "RedHat", "release": 9}, "virtual": True, "name": "web1", "none": None, "tags": ["a"]}


def _matches(wanted: Filter) -> bool:
    return wanted.matches(identity="n1.example.net", agents=AGENTS, classes=("role::web", "base"), facts=FACTS)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (Filter(), True),
        (Filter(identity=("n1.example.net",)), True),
        (Filter(identity=("other", "n1.example.net")), True),
        (Filter(identity=("other",)), False),
        (Filter(identity=("/^n[0-9]/",)), True),
        (Filter(identity=("/example/",)), True),
        (Filter(identity=("/^example/",)), False),
        (Filter(identity=("/",)), False),
        (Filter(identity=("//",)), True),
        (Filter(identity=("n1.example",)), False),
        (Filter(agent=("choria_provision",)), True),
        (Filter(agent=("choria_provision", "rpcutil")), True),
        (Filter(agent=("choria_provision", "puppet")), False),
        (Filter(agent=("/^choria_/",)), True),
        (Filter(cf_class=("base", "/web$/")), True),
        (Filter(cf_class=("base", "db")), False),
        (Filter(identity=("n1.example.net",), agent=("puppet",)), False),
        (Filter(compound=([{"expr": "x"}],)), False),
        (Filter(identity=("/(/",)), False),
        (Filter(identity=(r"/^[[:alpha:]][[:digit:]]\./",)), True),
    ],
)
def test_sections(wanted: Filter, expected: bool) -> None:
    assert _matches(wanted) is expected


@pytest.mark.parametrize(
    ("fact", "operator", "value", "expected"),
    [
        ("os.family", "==", "RedHat", True),
        ("os.family", "!=", "RedHat", False),
        ("os.family", "=~", "/hat|Hat/", True),
        ("os.family", "=~", "^Hat", False),
        ("os.release", ">=", "9", True),
        ("os.release", ">", "10", False),
        ("os.release", "<", "10", True),
        ("os.release", "<=", "8.5", False),
        ("virtual", "==", "true", True),
        ("name", ">", "web0", True),
        ("none", "==", "None", False),
        ("tags", "==", "a", False),
        ("absent", "!=", "x", False),
        ("name.deeper", "==", "x", False),
    ],
)
def test_facts(fact: str, operator: str, value: str, expected: bool) -> None:
    assert _matches(Filter(fact=(Fact(fact, operator, value),))) is expected


def test_no_facts_at_all() -> None:
    assert not Filter(fact=(Fact("a", "==", "b"),)).matches(identity="n1")


def test_a_pattern_that_would_backtrack_for_ever_does_not() -> None:
    assert not Filter(identity=("/^(a+)+$/",)).matches(identity="a" * 5000 + "b")


def test_decode_and_encode() -> None:
    wire = {
        "fact": [{"fact": "a", "operator": "==", "value": "b"}],
        "cf_class": ["c"],
        "agent": ["d"],
        "identity": ["e"],
        "compound": [[{"expr": "f"}]],
    }
    decoded = filters.decode(Layer(wire, "filter"))
    assert decoded == Filter((Fact("a", "==", "b"),), ("c",), ("d",), ("e",), ([{"expr": "f"}],))
    assert decoded.as_json() == wire
    assert filters.decode(Layer({key: EMPTY[key] for key in EMPTY if key != "agent"}, "filter")) == Filter()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fact": None}, "fact of the filter is missing, not an array"),
        ({"identity": "x"}, "identity of the filter is text, not an array"),
        ({"cf_class": [1]}, "cf_class of the filter has a member that is not text"),
        ({"compound": {}}, "compound of the filter is an object, not an array"),
        ({"fact": [1]}, "the fact filter is not a JSON object"),
        ({"fact": [{"fact": "", "operator": "==", "value": ""}]}, "fact of the fact filter is empty"),
        ({"fact": [{"fact": "a", "operator": "~\x1b", "value": ""}]}, r"a fact filter has the operator '~\\x1b', not"),
        ({"agent": None}, "agent of the filter is missing, not an array"),
    ],
)
def test_decode_refuses(change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadReply, match=message):
        filters.decode(Layer(EMPTY | change, "filter"))


@given(st.text(max_size=30), st.text(max_size=30))
def test_no_pattern_raises(pattern: str, text: str) -> None:
    Filter(identity=(f"/{pattern}/",)).matches(identity=text)
