"""Question to answer: each refusal, each narrowing, what is told always, and pages that lose nothing."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.errors import RegistryError
from provisioner.registry.answer import MAX_REQUEST, Request, answer, error_answer, parse_request
from provisioner.registry.keys import APPLIED, COLLECT, NEEDS, REGISTRY, SHAPES, Shape
from provisioner.registry.rows import Rows
from provisioner.registry.table import wanted

LIMIT = 1024 * 1024


def held(shape: Shape, content: dict[str, bytes]) -> Rows:
    rows = Rows(shape)
    for revision, (key, value) in enumerate(content.items(), 1):
        rows.put(key, value, revision)
    return rows


def ask(rows: Rows, limit: int = LIMIT, /, **question: str) -> dict[str, Any]:
    request = parse_request(json.dumps({"what": rows.shape.what, **question}).encode())
    data = answer(request, rows, 99, limit)
    assert len(data) <= limit
    decoded = json.loads(data)
    assert isinstance(decoded, dict)
    return decoded


def pages(rows: Rows, limit: int, /, **question: str) -> list[dict[str, Any]]:
    found = [ask(rows, limit, **question)]
    while found[-1]["truncated"]:
        assert len(found) < 1000
        found.append(ask(rows, limit, after=found[-1]["next"], **question))
    return found


# --- questions ---


def test_nothing_asks_for_the_registry() -> None:
    assert parse_request(b"") == parse_request(b"{}") == Request(REGISTRY)


def test_a_narrowed_question() -> None:
    asked = {"what": "collect", "node": "n1", "module": "zshmod", "collection": "shell:zsh:normal", "after": "n1.a.b"}
    request = parse_request(json.dumps(asked).encode())
    narrowing = {"node": "n1", "module": "zshmod", "collection": "shell:zsh:normal"}
    assert request == Request(COLLECT, narrowing, "n1.a.b")
    assert parse_request(request.encode()) == request


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"nonsense", "not JSON"),
        (b"\xff\xfe", "not JSON: not UTF-8 at byte 0"),
        (b'"needs"', "must be a JSON object"),
        (b"[]", "must be a JSON object"),
        (b"null", "must be a JSON object"),
        (b'{"what":"secrets"}', 'unknown what "secrets"; allowed: registry, needs, applied, collect'),
        (b'{"what":1}', "what must be a text"),
        (b'{"what":"needs","node":null}', "node must be a text"),
        (b'{"what":"needs","node":["n1"]}', "node must be a text"),
        (b'{"what":"needs","nod":"n1"}', 'unknown field "nod"; allowed: what, node, module, collection, after'),
        (b'{"what":"needs","bucket":"../KV_x","key":"k"}', 'unknown field "bucket"'),
        (b'{"what":"needs","collection":"x"}', "collection does not narrow needs; allowed: node, module"),
        (b'{"what":"applied","collection":"x"}', "collection does not narrow applied"),
        (b'{"what":"registry","node":"n1"}', "node does not narrow registry"),
        (b'{"module":"m"}', "module does not narrow registry"),
        (b'{"what":"needs","node":""}', "node: a name can't be empty"),
        (b'{"what":"needs","node":"' + b"x" * 769 + b'"}', "node: a name takes 769 bytes"),
        (b'{"what":"needs","what":"applied"}', "same key twice"),
        (b'{"what":"needs","node":"\\ud800"}', "surrogate"),
        (b"[" * 20000, "nested too deep"),
        (b" " * (MAX_REQUEST + 1), f"at most {MAX_REQUEST} bytes"),
    ],
)
def test_questions_that_are_refused(data: bytes, why: str) -> None:
    with pytest.raises(RegistryError) as refused:
        parse_request(data)
    assert refused.value.code == "bad_request"
    assert why in str(refused.value)
    assert len(str(refused.value)) < 500


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_get_one_well_formed_answer(data: bytes) -> None:
    try:
        text = answer(parse_request(data), held(NEEDS, {}), 0, LIMIT)
    except RegistryError as error:
        text = error_answer(error.code, str(error))
    match json.loads(text):
        case {"error": {"code": "bad_request", "message": str(), **more}, **rest}:
            assert not more
            assert not rest
        case found:
            assert found["items"] == []


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)


@given(
    st.dictionaries(
        st.sampled_from(["what", "node", "module", "collection", "after"]) | st.text(max_size=3), json_values
    )
)
def test_any_object_is_understood_or_refused(asked: dict[str, Any]) -> None:
    try:
        request = parse_request(json.dumps(asked).encode())
    except RegistryError:
        return
    assert asked.get("what", "registry") == request.shape.what
    assert set(request.narrowing) <= set(request.shape.narrowings)
    assert set(asked) <= {"what", "after", *request.narrowing}


# --- answers ---

COLLECTED = {
    "n1.shell=3Azsh=3Anormal.zshmod": b'{"order":10}',
    "n1.hosts.dns": b"1",
    "n10.hosts.dns": b"2",
    "n2.n1.hosts": b"3",
    "n2.hosts.zshmod": b"4",
    "n1.app": b"5",
    "shell:zsh": b"6",
    "n2.x.y": b"",
    "n1.x.y": b"{nope",
}


def test_the_answer_of_the_specification() -> None:
    rows = held(COLLECT, COLLECTED)
    assert ask(rows, node="n1", module="zshmod", collection="shell:zsh:normal") == {
        "what": "collect",
        "sequence": 99,
        "items": [
            {
                "node": "n1",
                "collection": "shell:zsh:normal",
                "contributor": "zshmod",
                "key": "n1.shell=3Azsh=3Anormal.zshmod",
                "revision": 1,
                "value": {"order": 10},
            }
        ],
        "bad_keys": [
            {"key": "n1.app", "revision": 6, "why": "2 parts, a key of this bucket has 3"},
            {"key": "shell:zsh", "revision": 7, "why": "1 part, a key of this bucket has 3"},
        ],
        "bad_keys_total": 2,
        "bad_values": [],
        "truncated": False,
    }


@pytest.mark.parametrize(
    ("narrowing", "keys", "bad_values"),
    [
        ({}, ["n1.hosts.dns", "n1.shell=3Azsh=3Anormal.zshmod", "n10.hosts.dns", "n2.hosts.zshmod", "n2.n1.hosts"],
         ["n1.x.y", "n2.x.y"]),
        ({"node": "n1"}, ["n1.hosts.dns", "n1.shell=3Azsh=3Anormal.zshmod"], ["n1.x.y"]),
        ({"node": "n"}, [], []),
        ({"node": "N1"}, [], []),
        ({"node": "n2", "module": "y"}, [], ["n2.x.y"]),
        ({"module": "dns"}, ["n1.hosts.dns", "n10.hosts.dns"], []),
        ({"collection": "hosts"}, ["n1.hosts.dns", "n10.hosts.dns", "n2.hosts.zshmod"], []),
        ({"collection": "shell=3Azsh=3Anormal"}, [], []),
        ({"collection": "n1"}, ["n2.n1.hosts"], []),
        ({"node": "n10", "collection": "hosts", "module": "dns"}, ["n10.hosts.dns"], []),
    ],
)  # fmt: skip
def test_narrowing_compares_whole_decoded_names(
    narrowing: dict[str, str], keys: list[str], bad_values: list[str]
) -> None:
    found = ask(held(COLLECT, COLLECTED), **narrowing)
    assert [item["key"] for item in found["items"]] == keys
    assert [bad["key"] for bad in found["bad_values"]] == bad_values
    assert [bad["key"] for bad in found["bad_keys"]] == ["n1.app", "shell:zsh"]


def test_each_bucket_names_its_parts() -> None:
    registry = ask(held(REGISTRY, wanted()))["items"]
    assert [item["kind"] for item in registry] == sorted(wanted())
    assert {item["kind"]: item["value"] for item in registry} == {k: json.loads(v) for k, v in wanted().items()}
    assert ask(held(NEEDS, {"n1.app.bound.db=3Ax": b"[]"}))["items"] == [
        {"node": "n1", "module": "app", "kind": "bound", "name": "db:x", "key": "n1.app.bound.db=3Ax", "revision": 1,
         "value": []}
    ]  # fmt: skip
    assert ask(held(APPLIED, {"n1.app": b"null"}))["items"] == [
        {"node": "n1", "module": "app", "key": "n1.app", "revision": 1, "value": None}
    ]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"", "empty"),
        (b"{nope", "not JSON: Expecting property name enclosed in double quotes at character 1"),
        (b"\xff", "not JSON: not UTF-8 at byte 0"),
        (b"NaN", "not JSON: NaN is not JSON"),
        (b"1e999", "not JSON: a number is out of range"),
        (b"[" * 101 + b"]" * 101, "nested deeper than 100"),
        (b'{"a":' * 101 + b"1" + b"}" * 101, "nested deeper than 100"),
        (b"[" * 100_000, "not JSON: nested too deep"),
    ],
)
def test_values_that_are_no_json(value: bytes, why: str) -> None:
    found = ask(held(APPLIED, {"n1.app": value}))
    assert found["items"] == []
    assert found["bad_values"] == [{"key": "n1.app", "revision": 1, "why": why}]


def test_a_value_goes_on_as_it_was_stored() -> None:
    value = b' {"b": 1.10, "a": [1e3,  "\\u00e9"], "b": 2}\n'
    assert value in answer(Request(APPLIED), held(APPLIED, {"n1.app": value}), 1, LIMIT)
    deep = b"[" * 100 + b"]" * 100
    assert len(ask(held(APPLIED, {"n1.app": deep, "n1.b": b"[" + b"[],{}," * 99 + b"[]]"}))["items"]) == 2


def test_an_empty_bucket() -> None:
    for shape in SHAPES.values():
        assert ask(held(shape, {})) == {
            "what": shape.what, "sequence": 99, "items": [], "bad_keys": [], "bad_keys_total": 0, "bad_values": [],
            "truncated": False,
        }  # fmt: skip


def test_a_deleted_key_is_gone_and_a_changed_one_is_there_once() -> None:
    rows = held(COLLECT, COLLECTED)
    for key in ("n1.hosts.dns", "shell:zsh", "never.was.there"):
        rows.remove(key)
    rows.put("n10.hosts.dns", b"7", 70)
    found = ask(rows, module="dns")
    assert [(item["key"], item["value"], item["revision"]) for item in found["items"]] == [("n10.hosts.dns", 7, 70)]
    assert found["bad_keys_total"] == 1


# --- pages ---

bucket_contents = st.dictionaries(
    st.tuples(*[st.sampled_from(["n1", "n2", "a:b", "é", "x" * 60])] * 3).map(lambda names: COLLECT.key(*names))
    | st.sampled_from(["n1.app", "shell:zsh", "n2..x", "a.*", "\x7f\n", "zzz"]),
    st.sampled_from([b"", b"1", b'"' + b"v" * 300 + b'"', b"x", b'{"a":[]}']),
    max_size=40,
)


@given(bucket_contents, st.integers(1200, 4000), st.sampled_from([{}, {"node": "n1"}, {"module": "é", "node": "a:b"}]))
def test_pages_lose_nothing_and_tell_nothing_twice(
    content: dict[str, bytes], limit: int, narrowing: dict[str, str]
) -> None:
    rows = held(COLLECT, content)
    whole = ask(rows, **narrowing)
    assert not whole["truncated"]
    found = pages(rows, limit, **narrowing)
    for part in ("items", "bad_keys", "bad_values"):
        assert [row for page in found for row in page[part]] == whole[part]
    assert {page["bad_keys_total"] for page in found} == {len(whole["bad_keys"])}


def test_a_million_bytes_are_paged() -> None:
    rows = held(COLLECT, {f"n{number}.c.m": b'"' + b"v" * 1000 + b'"' for number in range(3000)})
    found = pages(rows, LIMIT)
    assert len(found) == 4  # 3,000 items of 1,060 to 1,072 bytes: 3.2 MB
    assert len({item["key"] for page in found for item in page["items"]}) == 3000


def test_an_answer_is_never_over_a_mebibyte_whatever_the_server_allows() -> None:
    rows = held(COLLECT, {f"n{number}.c.m": b'"' + b"v" * 100_000 + b'"' for number in range(30)})
    assert len(answer(Request(COLLECT), rows, 1, 64 * LIMIT)) <= LIMIT


def test_one_item_over_the_limit_is_told_and_passed() -> None:
    rows = held(APPLIED, {"a.a": b"1", "b.b": b'"' + b"v" * 5000 + b'"', "c.c": b"3"})
    found = pages(rows, 1000)
    assert [item["key"] for page in found for item in page["items"]] == ["a.a", "c.c"]
    assert [bad for page in found for bad in page["bad_values"]] == [
        {"key": "b.b", "revision": 2, "why": "5002 bytes, too large for an answer"}
    ]


def test_a_limit_that_nothing_fits() -> None:
    with pytest.raises(RegistryError, match="too small to answer") as refused:
        ask(held(APPLIED, {"a.a": b"1"}), 120)
    assert refused.value.code == "unavailable"


def test_a_page_may_begin_behind_a_key_that_is_gone() -> None:
    rows = held(APPLIED, {"a.a": b"1", "c.c": b"3", "stray": b""})
    assert [item["key"] for item in ask(rows, after="b.b")["items"]] == ["c.c"]
    assert ask(rows, after="zzz")["items"] == []
    assert ask(rows, after="t")["bad_keys"] == []
    assert ask(rows, after="t")["bad_keys_total"] == 1
