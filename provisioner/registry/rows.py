"""What one bucket holds, in memory and in the order of its keys, each key and value read once as it arrives."""

import heapq
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping

from attrs import frozen

from provisioner import strictjson
from provisioner.registry.keys import BadKey, Shape

MAX_DEPTH = 100
"""Nesting of a value. Within an answer it lies three deeper, and any reader of the answer must get through it all."""


@frozen
class Row:
    """One key as stored, and what reading it found.

    Attributes:
        key: the key as it is in the bucket.
        value: its bytes.
        revision: the bucket's sequence number of this value.
        names: the names in the key; empty for a key out of shape.
        fault: what is wrong with the key (no ``names``) or else with the value; ``""`` for a good row.
    """

    key: str
    value: bytes
    revision: int
    names: tuple[str, ...] = ()
    fault: str = ""


def read_row(shape: Shape, key: str, value: bytes, revision: int) -> Row:
    """Reads one stored key and value. Never raises: what is wrong is said in the row's ``fault``."""
    try:
        names = shape.names(key)
    except BadKey as error:
        return Row(key, value, revision, fault=str(error))
    return Row(key, value, revision, names, value_fault(value))


def value_fault(value: bytes) -> str:
    """What is wrong with a stored value; ``""`` when it is JSON that any reader can take."""
    if not value:
        return "empty"
    try:
        content = strictjson.loads(value)
    except strictjson.NotJSON as error:
        return f"not JSON: {error}"
    if value.count(b"[") + value.count(b"{") > MAX_DEPTH and _deeper_than(content, MAX_DEPTH):
        return f"nested deeper than {MAX_DEPTH}"
    return ""


def _deeper_than(content: object, limit: int) -> bool:
    level = [content]
    for _ in range(limit):
        level = [
            inner
            for outer in level
            if isinstance(outer, (dict, list))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return any(isinstance(inner, (dict, list)) for inner in level)


class Rows:
    """The rows of one bucket. Reading a page costs what the page holds, not what the bucket holds.

    Attributes:
        shape: which bucket.
        size: bytes of all values.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.size = 0
        self._rows: dict[str, Row] = {}
        # Keys in order: all good ones, all out of shape, and the good ones that have one name in one place.
        self._good: list[str] = []
        self._bad: list[str] = []
        self._named: dict[tuple[int, str], list[str]] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows.values())

    @property
    def bad_keys(self) -> int:
        """How many keys are out of shape."""
        return len(self._bad)

    def put(self, key: str, value: bytes, revision: int) -> None:
        """Takes in a new value of a key."""
        row = read_row(self.shape, key, value, revision)
        before = self._rows.get(key)
        self._rows[key] = row
        self.size += len(value) - (len(before.value) if before else 0)
        if before is None:
            for order in self._orders(row):
                insort(order, key)

    def remove(self, key: str) -> None:
        """Takes in that a key was deleted; one that was not there is no matter."""
        if row := self._rows.pop(key, None):
            self.size -= len(row.value)
            for order in self._orders(row):
                del order[bisect_left(order, key)]
            for place, name in enumerate(row.names):
                if self._named.get((place, name)) == []:
                    del self._named[place, name]

    def _orders(self, row: Row) -> Iterator[list[str]]:
        if not row.names:
            yield self._bad
            return
        yield self._good
        for place in self.shape.narrowings.values():
            yield self._named.setdefault((place, row.names[place]), [])

    def after(self, key: str, narrowing: Mapping[str, str]) -> Iterator[Row]:
        """The rows behind ``key``, in order: all keys out of shape, and the others that the narrowing lets through.

        Args:
            key: the last key that the asker has, or ``""``.
            narrowing: the question's words for this bucket's shape, to whole names. Of a key out of shape nobody can
                say which node it belongs to, so it is told whatever the narrowing.
        """
        asked = [(self.shape.narrowings[word], name) for word, name in narrowing.items()]
        # The shortest of the orders holds all that is asked for.
        order = min((self._named.get(each, []) for each in asked), key=len, default=self._good)
        good = (row for row in self._behind(order, key) if all(row.names[place] == name for place, name in asked))
        return heapq.merge(good, self._behind(self._bad, key), key=lambda row: row.key)

    def _behind(self, order: list[str], key: str) -> Iterator[Row]:
        return (self._rows[order[place]] for place in range(bisect_right(order, key), len(order)))
