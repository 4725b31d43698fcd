"""The mark in a role's comment that says: this program made it, for this provision and this consumer (mesh.md A5.3).

It is written in the transaction that creates the role, goes with the role, and a login can't write its own. It holds
no secret: every role on the server can read it.
"""

from typing import Any

from attrs import frozen

from provisioner import strictjson
from provisioner.grants import naming

MADE_BY = "postgres-provisioner"
GROUPS = ("ro", "rw")
"""The kinds of group role that a database can have: read only, read and write."""

_VERSION = 1
_MAX_COMMENT = 64 * 1024


@frozen
class Login:
    """The mark of a consumer's login.

    ``members`` are roles (by oid) whose membership in it was taken away while it is being revoked: should the run end
    there, the next one still knows whose sessions may have switched to it.
    """

    node: str
    module: str
    members: tuple[int, ...] = ()

    @property
    def role(self) -> str:
        """The only name under which a role may carry this mark."""
        return naming.login_name(self.node, self.module)


@frozen
class Kept:
    """The mark of a role that keeps what a departed consumer owned. ``since`` is an ISO date and time in UTC."""

    node: str
    module: str
    since: str

    @property
    def role(self) -> str:
        """The only name under which a role may carry this mark."""
        return naming.kept_name(self.node, self.module)


@frozen
class Group:
    """The mark of a group role, which holds one kind of access to one database."""

    database: str
    kind: str

    @property
    def role(self) -> str:
        """The only name under which a role may carry this mark."""
        return naming.group_name(self.database, self.kind)


Mark = Login | Kept | Group


def encode(mark: Mark, provision: str) -> str:
    """The comment that carries this mark: one compact JSON object."""
    fields: dict[str, Any] = {"made_by": MADE_BY, "v": _VERSION, "provision": provision}
    match mark:
        case Login(node, module, members):
            fields |= {"node": node, "module": module}
            if members:
                fields["members"] = list(members)
        case Kept(node, module, since):
            fields |= {"node": node, "module": module, "kept": True, "retained_since": since}
        case Group(database, kind):
            fields |= {"database": database, "group": kind}
    return strictjson.dumps(fields)


def decode(comment: str | None, provision: str) -> Mark | None:
    """The mark in a comment, or None when it is no mark of this program for this provision."""
    if comment is None or len(comment) > _MAX_COMMENT or not comment.startswith("{"):
        return None
    try:
        fields = strictjson.loads(comment, unique_keys=True)
    except strictjson.NotJSON:
        return None
    if (fields.get("made_by"), fields.get("v"), fields.get("provision")) != (MADE_BY, _VERSION, provision):
        return None
    match fields:
        case {"database": str(database), "group": "ro" | "rw" as kind}:
            return Group(database, kind)
        case {"node": str(node), "module": str(module)} if not (
            naming.name_fault(node, dots=True) or naming.name_fault(module, dots=False)
        ):
            return _consumer(node, module, fields)
    return None


def _consumer(node: str, module: str, fields: dict[str, Any]) -> Mark | None:
    match fields:
        case {"kept": True, "retained_since": str(since)}:
            return Kept(node, module, since)
        case {"kept": _}:
            return None
        case {"members": [*members]} if all(type(each) is int for each in members):
            return Login(node, module, tuple(members))
        case {"members": _}:
            return None
    return Login(node, module)
