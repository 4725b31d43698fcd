"""Carries out one consumer's steps: which statements make each true, on PostgreSQL 14 to 18 (postgres-versions 10)."""

import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from attrs import define, field
from psycopg import sql

from provisioner.errors import GrantError, StatementRefused
from provisioner.grants import mark, plan, scram, steps
from provisioner.grants.catalogue import Server
from provisioner.grants.handover import enter, hand_over, name
from provisioner.grants.manifest import Consumer
from provisioner.grants.postgres import Link, Session
from provisioner.secret import Secret

log = logging.getLogger(__name__)

_CHUNK = 200
"""Relations in one GRANT: each takes a lock, and one that goes meanwhile fails the whole statement."""

_TRIES = 3
_GONE = frozenset({"42P01", "3F000"})
"""A table or a schema that was dropped between the look and the grant."""

_GRANTS = {
    "ro": {"SCHEMA": "USAGE", "TABLE": "SELECT", "SEQUENCE": "SELECT"},
    "rw": {"SCHEMA": "USAGE", "TABLE": "SELECT, INSERT, UPDATE, DELETE", "SEQUENCE": "USAGE, SELECT, UPDATE"},
}
_LACKING = {
    "SCHEMA": """
        SELECT nspname, NULL FROM pg_namespace
        WHERE nspowner = %(owner)s AND NOT has_schema_privilege(%(group)s, oid, 'USAGE')""",
    "TABLE": """
        SELECT nspname, relname FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace
        WHERE relkind IN ('r', 'p', 'v', 'm', 'f') AND relowner = %(owner)s AND relpersistence <> 't'
          AND EXISTS (SELECT FROM unnest(string_to_array(%(wanted)s, ', ')) w
                      WHERE NOT has_table_privilege(%(group)s, pg_class.oid, w))""",
    "SEQUENCE": """
        SELECT nspname, relname FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace
        WHERE relkind = 'S' AND relowner = %(owner)s AND relpersistence <> 't'
          AND EXISTS (SELECT FROM unnest(string_to_array(%(wanted)s, ', ')) w
                      WHERE NOT has_sequence_privilege(%(group)s, pg_class.oid, w))""",
}


def hold(server: Server, role: str) -> sql.Composable:
    """The membership with which we may act for a role of ours.

    Before 16 it is ADMIN OPTION, or the role is out of our hands after an upgrade; from 16 on the creator has that
    already and lacks the rest.
    """
    options = "WITH INHERIT TRUE, SET TRUE" if server.major >= 16 else "WITH ADMIN OPTION"
    return sql.SQL("GRANT {} TO CURRENT_USER " + options).format(name(role))


@define
class Ensure:
    """The hands of one run's first half."""

    link: Link
    session: Session
    server: Server
    provision: str
    _shared: set[str] = field(factory=set)

    def serve(self, service: plan.Service, password: Secret) -> None:
        """Carries out all steps for one consumer.

        Raises:
            GrantError: PostgreSQL refused one; those before it hold, and the next run begins again.
        """
        consumer = service.consumer
        for step in service.steps:
            self.link.patiently(self._action(step, consumer, password))

    def _action(self, step: steps.Step, consumer: Consumer, password: Secret) -> Callable[[], None]:
        """What makes one step true; it can be done again when it was refused."""
        login = consumer.login
        match step:
            case steps.CreateLogin():
                action = partial(self._create, consumer, password)
            case steps.SetLogin():
                action = partial(self._set, login, password)
            case steps.Return(kept):
                action = partial(self._return, kept, consumer)
            case steps.Reclaim(kept):
                action = partial(hand_over, self.link, self.session, self.provision, kept, login)
            case steps.Extend(database, extensions):
                action = partial(self._extend, database, extensions, login)
            case steps.CreateGroup(group):
                action = partial(self._create_group, group)
            case steps.Share(database):
                action = partial(self._share, database)
            case steps.Join(wanted, leave):
                action = partial(self._join, login, wanted, leave)
            case _:
                action = partial(self._all, tuple(self._statements(step, consumer)))
        return action

    def _statements(self, step: steps.Step, consumer: Consumer) -> Iterator[sql.Composable]:
        """What a step that is nothing but statements, each committed by itself, sends."""
        match step:
            case steps.Hold(role):
                yield hold(self.server, role)
            case steps.WriteMark():
                yield self._comment(consumer.login, _label(consumer))
            case steps.DropInvalid(database):
                yield sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name(database))
            case steps.CreateDatabase(database):
                # template0: anybody connected to template1 would make it wait and fail. Closed, so that nobody slips in
                # before PUBLIC is shut out.
                yield sql.SQL("CREATE DATABASE {} OWNER {} TEMPLATE template0 ALLOW_CONNECTIONS false").format(
                    name(database), name(consumer.login)
                )
            case steps.SettleDatabase(database, parts):
                for part in parts:
                    yield self._part(part, name(database), consumer)

    def _all(self, statements: Iterable[sql.Composable]) -> None:
        for statement in statements:
            self._do(statement)

    def _do(self, statement: sql.Composable) -> None:
        self.session.execute(statement)

    def _comment(self, role: str, label: mark.Mark) -> sql.Composable:
        return sql.SQL("COMMENT ON ROLE {} IS {}").format(name(role), mark.encode(label, self.provision))

    # --- the login ---------------------------------------------------------------------------------------------------

    def _create(self, consumer: Consumer, password: Secret) -> None:
        login = consumer.login
        with self.session.transaction():
            self._do(
                sql.SQL(
                    "CREATE ROLE {} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS INHERIT "
                    "CONNECTION LIMIT -1 VALID UNTIL 'infinity' PASSWORD {}"
                ).format(name(login), scram.verifier(password.reveal()))
            )
            self._do(self._comment(login, _label(consumer)))
            if not self.server.superuser:
                self._do(hold(self.server, login))

    def _set(self, login: str, password: Secret) -> None:
        # Not NOSUPERUSER, NOREPLICATION, NOBYPASSRLS: saying so is refused to us even where it changes nothing.
        self._do(
            sql.SQL(
                "ALTER ROLE {} LOGIN NOCREATEDB NOCREATEROLE INHERIT CONNECTION LIMIT -1 "
                "VALID UNTIL 'infinity' PASSWORD {}"
            ).format(name(login), scram.verifier(password.reveal()))
        )

    def _return(self, kept: str, consumer: Consumer) -> None:
        with self.session.transaction():
            self._do(sql.SQL("ALTER ROLE {} RENAME TO {}").format(name(kept), name(consumer.login)))
            self._do(self._comment(consumer.login, _label(consumer)))

    # --- its database ------------------------------------------------------------------------------------------------

    def _part(self, part: str, database: sql.Identifier, consumer: Consumer) -> sql.Composable:
        match part:
            case "comment":
                return sql.SQL("COMMENT ON DATABASE {} IS {}").format(
                    database, mark.encode(_label(consumer), self.provision)
                )
            case "close":
                return sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(database)
            case "admit":
                return sql.SQL("GRANT ALL ON DATABASE {} TO {}").format(database, name(consumer.login))
            case "template":
                return sql.SQL("ALTER DATABASE {} IS_TEMPLATE false").format(database)
        return sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS true CONNECTION LIMIT -1").format(database)

    def _extend(self, database: str, extensions: tuple[str, ...], login: str) -> None:
        with enter(self.link, self.session, database) as session:
            present = {row[0] for row in session.execute("SELECT extname FROM pg_extension")}
            for extension in extensions:
                if extension in present:
                    continue
                # As the login, so that it owns the extension; in public, as search_path is not the owner's here.
                with session.acting_as(login):
                    session.execute(sql.SQL("CREATE EXTENSION IF NOT EXISTS {} SCHEMA public").format(name(extension)))

    # --- access for others -------------------------------------------------------------------------------------------

    def _create_group(self, group: mark.Group) -> None:
        if self.session.one("SELECT FROM pg_roles WHERE rolname = %s", (group.role,)) is not None:
            return  # made a moment ago, for another consumer of the same database
        with self.session.transaction():
            self._do(
                sql.SQL("CREATE ROLE {} NOLOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS").format(
                    name(group.role)
                )
            )
            self._do(self._comment(group.role, group))
            if not self.server.superuser:
                self._do(hold(self.server, group.role))

    def _share(self, database: str) -> None:
        if database in self._shared:
            return
        groups = {kind: mark.Group(database, kind).role for kind in mark.GROUPS}
        everyone = sql.SQL(", ").join(map(name, groups.values()))
        self._do(sql.SQL("GRANT CONNECT ON DATABASE {} TO {}").format(name(database), everyone))
        with enter(self.link, self.session, database) as session:
            row = session.one(
                "SELECT datdba, pg_get_userbyid(datdba) FROM pg_database WHERE datname = current_database()"
            )
            assert row is not None
            owner, owner_name = row
            for kind, group in groups.items():
                for what, privileges in _GRANTS[kind].items():
                    self._grant(session, what, privileges, owner, owner_name, group)
        self._shared.add(database)

    def _grant(self, session: Session, what: str, privileges: str, owner: int, owner_name: str, group: str) -> None:
        """One kind of object, to one group: what is made later first, then what is there and lacks it."""
        session.execute(
            sql.SQL("ALTER DEFAULT PRIVILEGES FOR ROLE {} GRANT {} ON {} TO {}").format(
                name(owner_name), sql.SQL(privileges), sql.SQL(f"{what}S"), name(group)
            )
        )
        for _ in range(_TRIES - 1):
            try:
                self._grant_lacking(session, what, privileges, owner, group)
                return
            except StatementRefused as error:
                if error.sqlstate not in _GONE:
                    raise
        self._grant_lacking(session, what, privileges, owner, group)

    def _grant_lacking(self, session: Session, what: str, privileges: str, owner: int, group: str) -> None:
        lacking = session.execute(_LACKING[what], {"owner": owner, "group": group, "wanted": privileges})
        for start in range(0, len(lacking), _CHUNK):
            objects = [sql.Identifier(*filter(None, row)) for row in lacking[start : start + _CHUNK]]
            session.execute(
                sql.SQL("GRANT {} ON {} {} TO {}").format(
                    sql.SQL(privileges), sql.SQL(what), sql.SQL(", ").join(objects), name(group)
                )
            )

    def _join(self, login: str, group: str | None, leave: tuple[str, ...]) -> None:
        with self.session.transaction():
            for each in leave:
                self._do(sql.SQL("REVOKE {} FROM {}").format(name(each), name(login)))
            if group is not None:
                self._do(sql.SQL("GRANT {} TO {}").format(name(group), name(login)))
        if leave and self.session.one(
            "SELECT FROM pg_auth_members WHERE member = %s::regrole AND roleid = ANY (%s::regrole[])",
            (_regrole(login), [_regrole(each) for each in leave]),
        ):
            raise GrantError(f"{login} is still a member of {', '.join(leave)}: an operator granted that as well")


def _label(consumer: Consumer) -> mark.Login:
    return mark.Login(consumer.node, consumer.module)


def _regrole(role: str) -> str:
    return '"' + role.replace('"', '""') + '"'
