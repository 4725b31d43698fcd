"""The rows of a bucket in memory: whatever comes and goes, a reading is what a plain look at everything gives."""

from hypothesis import given
from hypothesis import strategies as st

from provisioner.registry.keys import COLLECT
from provisioner.registry.rows import Row, Rows, read_row

NAMES = ["n1", "n10", "n2.x", "a:b"]
keys = st.tuples(*[st.sampled_from(NAMES)] * 3).map(lambda names: COLLECT.key(*names)) | st.sampled_from(
    ["n1", "n1.a", "a:b.c.d", "n1..x", "~"]
)
happenings = st.lists(st.tuples(keys, st.sampled_from([b"1", b"22", b"", b"nope", None])), max_size=60)
narrowings = st.dictionaries(st.sampled_from(["node", "module", "collection"]), st.sampled_from([*NAMES, "nobody"]))


def plain(held: dict[str, Row], after: str, narrowing: dict[str, str]) -> list[Row]:
    """What ``Rows.after`` is meant to give, in the most obvious way."""

    def wanted(row: Row) -> bool:
        return not row.names or all(row.names[COLLECT.narrowings[word]] == name for word, name in narrowing.items())

    return [held[key] for key in sorted(held) if key > after and wanted(held[key])]


@given(happenings, narrowings, keys | st.just(""))
def test_whatever_comes_and_goes(
    happened: list[tuple[str, bytes | None]], narrowing: dict[str, str], after: str
) -> None:
    rows, held = Rows(COLLECT), dict[str, Row]()
    for revision, (key, value) in enumerate(happened, 1):
        if value is None:
            rows.remove(key)
            held.pop(key, None)
        else:
            rows.put(key, value, revision)
            held[key] = read_row(COLLECT, key, value, revision)
    assert list(rows.after(after, narrowing)) == plain(held, after, narrowing)
    assert sorted(rows, key=lambda row: row.key) == plain(held, "", {})
    assert len(rows) == len(held)
    assert rows.bad_keys == sum(not row.names for row in held.values())
    assert rows.size == sum(len(row.value) for row in held.values())


@given(happenings)
def test_nothing_is_left_of_what_went(happened: list[tuple[str, bytes | None]]) -> None:
    rows = Rows(COLLECT)
    for key, value in happened:
        rows.put(key, value or b"", 1)
    for key, _ in happened:
        rows.remove(key)
    assert (len(rows), rows.size, rows.bad_keys) == (0, 0, 0)
    assert rows._named == {}
