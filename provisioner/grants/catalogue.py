"""What is on the server now, as one immutable picture, and which of it is provably ours (mesh.md A5.3)."""

from collections.abc import Iterator, Mapping

from attrs import field, frozen

from provisioner.grants import mark
from provisioner.grants.mark import Mark

POWERS = ("SUPERUSER", "CREATEROLE", "CREATEDB", "REPLICATION", "BYPASSRLS")
"""Attributes that this program never gives. A role that has one is not simply ours any more."""


@frozen
class Role:
    """A role of the server.

    Attributes:
        oid: its object id.
        name: its name.
        login: it has LOGIN.
        powers: those of ``POWERS`` that it has.
        limited: a connection limit, an expiry or NOINHERIT stands in the way of its use.
        owns: it owns at least one object, in any database.
        administered: we may alter it (on 15 and before: we hold it with ADMIN OPTION, so an upgrade keeps that).
        held: we inherit from it and may switch to it.
        mark: this program's mark for this provision, or None.
        stale: its comment is not what we would write.
    """

    oid: int
    name: str
    login: bool
    powers: tuple[str, ...] = ()
    limited: bool = False
    owns: bool = False
    administered: bool = True
    held: bool = True
    mark: Mark | None = None
    stale: bool = False

    @property
    def is_marked(self) -> bool:
        """It carries our mark under the one name that this mark may have; so we made it."""
        return self.mark is not None and self.mark.role == self.name

    @property
    def is_ours(self) -> bool:
        """We made it, and it is still as harmless as we made it."""
        return self.is_marked and not self.powers


@frozen
class Database:
    """A database of the server.

    Attributes:
        oid: its object id.
        name: its name.
        owner: its owner's oid.
        commented: it has a comment, whatever it says (the owner may write its own).
        open: it allows connections, and more than none.
        template: it is a template, which can't be dropped.
        invalid: a drop of it was interrupted; it can only be dropped.
        public: everybody has some right on it.
        owner_may_enter: its owner has every right on it.
    """

    oid: int
    name: str
    owner: int
    commented: bool = True
    open: bool = True
    template: bool = False
    invalid: bool = False
    public: bool = False
    owner_may_enter: bool = True


@frozen
class Server:
    """The server and the login that we are on it."""

    version: int
    user: str
    superuser: bool = False

    @property
    def major(self) -> int:
        """15, 16, ..."""
        return self.version // 10000


@frozen
class Catalogue:
    """Roles and databases by name, and which logins are members of which of our groups (by role name).

    The other fields say the same the other way round, for a plan that is linear in the number of consumers.
    """

    server: Server
    roles: Mapping[str, Role]
    databases: Mapping[str, Database]
    members: frozenset[tuple[str, str]] = frozenset()
    by_oid: Mapping[int, Role] = field(init=False)
    owned: Mapping[int, tuple[Database, ...]] = field(init=False)

    @by_oid.default
    def _(self) -> Mapping[int, Role]:
        return {role.oid: role for role in self.roles.values()}

    @owned.default
    def _(self) -> Mapping[int, tuple[Database, ...]]:
        found: dict[int, list[Database]] = {}
        for database in self.databases.values():
            found.setdefault(database.owner, []).append(database)
        return {oid: tuple(sorted(each, key=lambda one: one.name)) for oid, each in found.items()}

    groups_of: Mapping[str, tuple[str, ...]] = field(init=False)

    @groups_of.default
    def _(self) -> Mapping[str, tuple[str, ...]]:
        found: dict[str, list[str]] = {}
        for group, member in sorted(self.members):
            found.setdefault(member, []).append(group)
        return {member: tuple(groups) for member, groups in found.items()}

    def marked(self) -> Iterator[tuple[Role, Mark]]:
        """Our roles, those that were given powers too, with their marks, by name."""
        for name in sorted(self.roles):
            role = self.roles[name]
            if role.is_marked and role.mark is not None:
                yield role, role.mark

    def owner_of(self, database: Database) -> Role | None:
        """The role that owns a database, if it is one that we look at (ours, or wanted)."""
        return self.by_oid.get(database.owner)


def keeper(catalogue: Catalogue, node: str, module: str) -> Role | None:
    """The role that keeps what this consumer owned before it departed, if there is one."""
    role = catalogue.roles.get(mark.Kept(node, module, "").role)
    return role if role is not None and role.is_ours and isinstance(role.mark, mark.Kept) else None
