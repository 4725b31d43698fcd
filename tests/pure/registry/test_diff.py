"""The reconciler's middle: whatever the bucket holds, the changes give the table, and once more gives none."""

from hypothesis import given
from hypothesis import strategies as st

from provisioner.registry.diff import Change, Create, Delete, Update, differences
from provisioner.registry.rows import Row
from provisioner.registry.table import wanted

Bucket = dict[str, Row]


def apply(changes: list[Change], bucket: Bucket) -> Bucket:
    """A bucket as JetStream keeps it: each change has to name the revision that is there."""
    after = dict(bucket)
    sequence = max((row.revision for row in bucket.values()), default=0)
    for change in changes:
        sequence += 1
        match change:
            case Create(key, value):
                assert key not in after
                after[key] = Row(key, value, sequence)
            case Update(key, value, revision):
                assert after[key].revision == revision
                after[key] = Row(key, value, sequence)
            case Delete(key, revision):
                assert after.pop(key).revision == (bucket[key].revision if revision is None else revision)
                assert (revision is None) == any(token in ("*", ">") for token in key.split("."))
    return after


keys = st.sampled_from([*wanted(), "retired", "shell:zsh", "a.*", ">", "a.*b", "n1.app"]) | st.text(
    min_size=1, max_size=8
)
values = st.sampled_from([*wanted().values(), b"", b"null"]) | st.binary(max_size=8)
buckets = st.dictionaries(keys, values, max_size=20).map(
    lambda content: {key: Row(key, value, number) for number, (key, value) in enumerate(content.items(), 1)}
)


@given(buckets)
def test_any_bucket_becomes_the_table(bucket: Bucket) -> None:
    after = apply(differences(wanted(), bucket.values()), bucket)
    assert {row.key: row.value for row in after.values()} == wanted()
    assert differences(wanted(), after.values()) == []


@given(buckets)
def test_what_is_right_is_left_alone(bucket: Bucket) -> None:
    changed = {change.key for change in differences(wanted(), bucket.values())}
    right = {row.key for row in bucket.values() if wanted().get(row.key) == row.value}
    assert not changed & right


def test_an_empty_bucket_is_filled() -> None:
    assert differences(wanted(), []) == [Create(key, value) for key, value in wanted().items()]
    assert len(wanted()) == 13


def test_each_difference() -> None:
    held = [Row("a", b"1", 3), Row("b", b"changed", 4), Row("stray.key", b"x", 5)]
    assert differences({"a": b"1", "b": b"2", "c": b"3"}, held) == [
        Create("c", b"3"),
        Update("b", b"2", 4),
        Delete("stray.key", 5),
    ]
