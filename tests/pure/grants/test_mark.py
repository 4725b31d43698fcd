"""Marks: what is ours and what isn't (mesh.md A5.3)."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.grants import mark, naming

LOGIN = {"made_by": "postgres-provisioner", "v": 1, "provision": "database", "node": "n1", "module": "wiki"}


def test_the_mark_of_the_specification() -> None:
    assert mark.encode(mark.Login("n1", "wiki"), "database") == (
        '{"made_by":"postgres-provisioner","v":1,"provision":"database","node":"n1","module":"wiki"}'
    )
    assert mark.decode(json.dumps(LOGIN), "database") == mark.Login("n1", "wiki")


NAMES = st.text(min_size=1, max_size=40).filter(lambda each: naming.name_fault(each, dots=False) is None)
MARKS = st.one_of(
    st.builds(mark.Login, NAMES, NAMES, st.lists(st.integers(1, 2**32 - 1)).map(tuple)),
    st.builds(mark.Kept, NAMES, NAMES, st.just("2026-01-31T12:00:00+00:00")),
    st.builds(mark.Group, NAMES, st.sampled_from(["ro", "rw"])),
)


@given(MARKS, NAMES)
def test_a_mark_is_read_as_it_was_written_and_only_for_its_provision(each: mark.Mark, provision: str) -> None:
    comment = mark.encode(each, provision)
    assert mark.decode(comment, provision) == each
    assert mark.decode(comment, provision + "x") is None


@pytest.mark.parametrize(
    "comment",
    [
        None,
        "",
        "the wiki's role",
        "[]",
        "{",
        json.dumps(LOGIN | {"made_by": "somebody"}),
        json.dumps(LOGIN | {"v": 2}),
        json.dumps(LOGIN | {"v": "1"}),
        json.dumps(LOGIN | {"provision": "other"}),
        json.dumps(LOGIN | {"node": 7}),
        json.dumps(LOGIN | {"node": "a/b"}),
        json.dumps(LOGIN | {"module": "a.b"}),
        json.dumps(LOGIN | {"kept": True}),
        json.dumps(LOGIN | {"kept": "yes", "retained_since": "x"}),
        json.dumps(LOGIN | {"members": ["x"]}),
        json.dumps(LOGIN | {"members": [True]}),
        json.dumps({key: value for key, value in LOGIN.items() if key != "module"}),
        json.dumps(LOGIN)[:-1] + ',"node":"n2"}',
        json.dumps(LOGIN | {"x": "y" * 70_000}),
    ],
)
def test_what_is_no_mark(comment: str | None) -> None:
    assert mark.decode(comment, "database") is None


@given(st.text(max_size=200))
def test_no_comment_is_too_odd(comment: str) -> None:
    assert mark.decode(comment, "database") is None
