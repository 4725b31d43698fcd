"""What has to be written so that the registry bucket equals the table: differences only, each bound to a revision.

A put of the bytes that are there already would take a new revision and wake every watcher of the mesh, so equal bytes
are never sent (spec: mesh B5).
"""

from collections.abc import Iterable, Mapping

from attrs import frozen

from provisioner.registry.rows import Row


@frozen
class Create:
    """A key that is missing."""

    key: str
    value: bytes


@frozen
class Update:
    """A key that holds something else, as read at ``revision``."""

    key: str
    value: bytes
    revision: int


@frozen
class Delete:
    """A key that the table doesn't have, as read at ``revision``: a retired kind or any stray, well-formed or not.

    No revision for a key that has a wildcard for a token, as a careless client can store it: the server would compare
    with the last write of every key that the wildcard covers, the deletion of a neighbour included.
    """

    key: str
    revision: int | None


Change = Create | Update | Delete


def differences(wanted: Mapping[str, bytes], held: Iterable[Row]) -> list[Change]:
    """The changes that turn ``held`` into ``wanted``; empty when they are equal.

    Args:
        wanted: key to value, as ``table.wanted()`` gives it.
        held: every row of the bucket.
    """
    missing = dict(wanted)
    changes: list[Change] = []
    for row in held:
        value = missing.pop(row.key, None)
        if value is None:
            wild = not {"*", ">"}.isdisjoint(row.key.split("."))
            changes.append(Delete(row.key, None if wild else row.revision))
        elif value != row.value:
            changes.append(Update(row.key, value, row.revision))
    return [*(Create(key, value) for key, value in missing.items()), *changes]
