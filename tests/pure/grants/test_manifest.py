"""The manifest: what is refused whole, what protects one consumer, what suspends removals (mesh.md A5.1, A5.4)."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.errors import GrantError
from provisioner.grants import manifest
from provisioner.grants.manifest import Consumer, Manifest

SPECIFIED = {
    "version": 1,
    "provision": "database",
    "consumers": [
        {
            "node": "n1",
            "module": "wiki",
            "asks": {"name": "wiki", "access": "owner"},
            "secret": "/var/lib/postgres/grants/n1.wiki.secret",
        }
    ],
}


def parse(value: Any) -> Manifest:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return manifest.parse(data, provision="database")


def entries(*consumers: Any) -> Manifest:
    return parse({"consumers": list(consumers)})


def test_the_manifest_of_the_specification() -> None:
    secret = "/var/lib/postgres/grants/n1.wiki.secret"
    assert parse(SPECIFIED) == Manifest((Consumer("n1", "wiki", "wiki", "owner", (), secret),))


def test_all_that_may_be_left_out() -> None:
    assert entries({"node": "n1", "module": "wiki"}).consumers == (Consumer("n1", "wiki", "n1.wiki"),)


def test_nobody_is_asked_for() -> None:
    assert entries() == Manifest(())


REFUSED = [
    (b"", "is empty"),
    (b"   ", "is not JSON"),
    (b"# nothing", "is not JSON"),
    (b"\xff\xfe{}", "is not JSON"),
    (b"\xef\xbb\xbf" + json.dumps(SPECIFIED).encode(), "is not JSON"),
    (b"null", "must be an object"),
    (b"[]", "must be an object"),
    (b"{}", "has no list called consumers"),
    (b'{"consumer": []}', "has no list called consumers"),
    (b'{"consumers": null}', "must be a list"),
    (b'{"consumers": {}}', "must be a list"),
    (b'{"consumers": [], "consumers": []}', "the same key twice"),
    (b'{"consumers": []} x', "is not JSON"),
    (b'{"consumers": [NaN]}', "is not JSON"),
    (b'{"version": 2, "consumers": []}', "has a version other than 1 (found 2)"),
    (b'{"version": "1", "consumers": []}', 'has a version other than 1 (found "1")'),
    (b'{"version": true, "consumers": []}', "has a version other than 1 (found true)"),
    (b'{"version": 1.0, "consumers": []}', "has a version other than 1 (found 1.0)"),
    (b'{"version": 1e999, "consumers": []}', "is not JSON: a number is out of range"),
    (b'{"provision": "other", "consumers": []}', 'is for the provision "other", and this run serves "database"'),
    (b'{"provision": null, "consumers": []}', "is for the provision null"),
    (b'{"consumers": [' + b" " * manifest.MAX_BYTES + b"]}", "is longer than"),
    (b'{"consumers": ' + b"[" * 200_000, "is not JSON"),
]


@pytest.mark.parametrize(("data", "why"), REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_what_can_not_be_used_at_all(data: bytes, why: str) -> None:
    with pytest.raises(GrantError) as refused:
        parse(data)
    assert why in str(refused.value)


def test_a_manifest_cut_anywhere_is_refused() -> None:
    data = json.dumps(SPECIFIED).encode()
    for length in range(len(data)):
        with pytest.raises(GrantError):
            parse(data[:length])


ILLEGIBLE: list[Any] = [
    None,
    "n1.wiki",
    [],
    {},
    {"node": "n1"},
    {"module": "wiki"},
    {"node": "n1", "module": None},
    {"node": 1, "module": "wiki"},
    {"node": "", "module": "wiki"},
    {"node": "..", "module": "wiki"},
    {"node": "a/b", "module": "wiki"},
    {"node": "n1", "module": "wi.ki"},
    {"node": "n1~", "module": "wiki"},
    {"node": "n\x001", "module": "wiki"},
]


@pytest.mark.parametrize("entry", ILLEGIBLE, ids=repr)
def test_an_entry_that_does_not_say_whose_it_is(entry: Any) -> None:
    found = entries({"node": "n2", "module": "mail"}, entry)
    assert [each.identity for each in found.consumers] == [("n2", "mail")]
    assert len(found.illegible) == 1
    assert found.illegible[0].startswith("entry 2: ")


LEGIBLE = [
    ({"asks": []}, "asks must be an object"),
    ({"asks": {"size": 3}}, 'asks for "size", which this program doesn\'t know'),
    ({"asks": {"name": 1}}, "asks.name must be text"),
    ({"asks": {"name": "x" * 64}}, "asks.name is longer than 63 bytes"),
    ({"asks": {"name": "postgres"}}, "asks.name is PostgreSQL's own"),
    ({"asks": {"access": "admin"}}, "asks.access must be owner, readwrite or readonly"),
    ({"asks": {"access": "readonly"}}, "asks.name must say which"),
    ({"asks": {"access": ["owner"]}}, "asks.access must be owner, readwrite or readonly"),
    ({"asks": {"extensions": "citext"}}, "asks.extensions must be a list of names"),
    ({"asks": {"extensions": [1]}}, "asks.extensions must be a list of names"),
    ({"asks": {"extensions": ["x"] * 65}}, "asks.extensions has more than 64 names"),
    ({"asks": {"name": "x", "access": "readonly", "extensions": ["x"]}}, "asks.extensions is for the owner"),
    ({"secret": 7}, "secret must be a path"),
    ({"secret": "a\0b"}, "secret must be a path"),
]


@pytest.mark.parametrize(("more", "why"), LEGIBLE, ids=[why for _, why in LEGIBLE])
def test_an_entry_that_can_not_be_served_protects_its_consumer(more: dict[str, Any], why: str) -> None:
    found = entries({"node": "n1", "module": "wiki", **more}, {"node": "n2", "module": "mail"})
    assert [each.identity for each in found.consumers] == [("n2", "mail")]
    (refused,) = found.refused
    assert refused.identity == ("n1", "wiki")
    assert why in refused.why
    assert found.asked == {("n1", "wiki"), ("n2", "mail")}
    assert not found.illegible


def test_a_reserved_login_is_refused() -> None:
    (refused,) = entries({"node": "pg_1", "module": "x"}).refused
    assert refused.why == "a role's name can't begin with pg_"


def test_the_same_consumer_twice_fails_twice_over() -> None:
    found = entries({"node": "n1", "module": "a"}, {"node": "n1", "module": "a", "asks": {"name": "x"}})
    assert found.consumers == ()
    assert [each.identity for each in found.refused] == [("n1", "a")]


def test_the_same_consumer_once_well_and_once_badly() -> None:
    found = entries({"node": "n1", "module": "a"}, {"node": "n1", "module": "a", "asks": 1})
    assert found.consumers == ()
    assert found.asked == {("n1", "a")}


def test_two_owners_of_one_database_both_fail() -> None:
    found = entries(
        {"node": "n1", "module": "a", "asks": {"name": "shared"}},
        {"node": "n2", "module": "b", "asks": {"name": "shared"}},
        {"node": "n3", "module": "c", "asks": {"name": "shared", "access": "readonly"}},
    )
    assert [each.identity for each in found.consumers] == [("n3", "c")]
    assert {each.why for each in found.refused} == {"another consumer asks to own shared as well"}


def test_keys_that_are_not_known_are_told_and_passed_over() -> None:
    found = parse({"consumers": [{"node": "n1", "module": "a", "zone": 1}], "mesh": "m", "provision": "database"})
    assert [each.identity for each in found.consumers] == [("n1", "a")]
    assert found.notes == (
        'the manifest: the key "mesh" is not known and was passed over',
        'n1.a: the key "zone" is not known and was passed over',
    )


def test_a_stranger_s_value_can_not_move_the_cursor() -> None:
    found = entries({"node": "n\x1b[2J", "module": "a"})
    assert found.illegible == ('entry 1: node has a control character (found "n\\u001b[2J")',)


def test_owners_come_first_and_all_in_order() -> None:
    found = entries(
        {"node": "a", "module": "x", "asks": {"name": "b.x", "access": "readonly"}},
        {"node": "c", "module": "x"},
        {"node": "b", "module": "x"},
    )
    assert [each.node for each in found.consumers] == ["b", "c", "a"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["node", "module", "asks", "secret", "name", "access", "x"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@given(st.lists(JSON, max_size=4))
def test_no_entry_is_too_odd_and_none_is_lost(odd: list[Any]) -> None:
    data = json.dumps({"consumers": [{"node": "n1", "module": "a"}, *odd]})
    if "NaN" in data or "Infinity" in data:
        return
    found = manifest.parse(data.encode(), provision="database")
    assert ("n1", "a") in found.asked
    assert len(found.asked) + len(found.illegible) <= len(odd) + 1


@given(st.binary(max_size=200))
def test_no_bytes_are_too_odd(data: bytes) -> None:
    with contextlib.suppress(GrantError):
        manifest.parse(data, provision="database")
