"""Takes away what nobody asks for any more, so that nothing of it can act afterwards (mesh.md A5.9, A5.10).

In three rounds over all that go, since each alone would have to wait: first every login is shut (NOLOGIN, committed
alone, so that nobody comes back in), then all their sessions are ended until none is seen twice, then each is dropped,
or renamed to a role without LOGIN when it owns data that is to be kept. Rename takes no locks on data and visits no
database. Where a later step is refused, the first two have bitten all the same: the result is ``disabled``, the mark
stays, and the next run goes on.
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from attrs import define, evolve, field
from psycopg import sql

from provisioner.errors import StatementRefused
from provisioner.grants import mark, plan
from provisioner.grants.catalogue import Server
from provisioner.grants.ensure import hold
from provisioner.grants.handover import Place, clear, enter, hand_over, name
from provisioner.grants.plan import OnRevoke, Removal
from provisioner.grants.postgres import INSUFFICIENT_PRIVILEGE, PASSING, Link, Session
from provisioner.grants.report import RemovalResult

log = logging.getLogger(__name__)

_SHUT_SECONDS = 30.0
_END_SECONDS = 15.0
_END_SECONDS_EACH = 0.5
_SHUT_LOCK_TIMEOUT = "500ms"
_TERMINATE_MILLISECONDS = 2000

_MEMBERS = """
WITH RECURSIVE inside AS (
    SELECT member FROM pg_auth_members WHERE roleid = %(oid)s AND member <> %(me)s
    UNION SELECT m.member FROM pg_auth_members m JOIN inside ON m.roleid = inside.member WHERE m.member <> %(me)s)
SELECT r.oid, r.rolname, EXISTS (SELECT FROM pg_auth_members WHERE roleid = %(oid)s AND member = r.oid)
FROM inside JOIN pg_roles r ON r.oid = inside.member WHERE NOT r.rolsuper ORDER BY r.rolname"""

# No filter on backend_type: it is NULL for whom we may not see, and a subscription's worker has another.
_WHOSE = """
SELECT pid, usesysid, usename, coalesce(datname, '') FROM pg_stat_activity
WHERE usesysid = ANY (%s::oid[]) AND pid <> pg_backend_pid() ORDER BY pid"""


@define
class _Leaving:
    """One login on its way out.

    ``lingering`` are its own sessions that can't be ended, ``others`` those who may still act as it.
    """

    removal: Removal
    result: RemovalResult
    shut: bool = False
    lingering: list[str] = field(factory=list)
    others: list[str] = field(factory=list)
    done: bool = False

    @property
    def oid(self) -> int:
        return self.removal.role.oid

    @property
    def role(self) -> str:
        return self.removal.role.name

    def end(self, **changes: Any) -> None:
        self.result = evolve(self.result, **changes)
        self.done = True


@define
class Remove:
    """The hands of one run's second half. ``now`` is the ISO time that goes into marks."""

    link: Link
    session: Session
    server: Server
    provision: str
    on_revoke: OnRevoke
    now: str
    quiet_seconds: float = plan.QUIET_SECONDS
    _me: int = 0

    def remove(self, removals: Sequence[Removal], results: list[RemovalResult]) -> None:
        """Removes all of these; one that can't be removed doesn't hold up the others.

        Args:
            removals: what goes.
            results: gets what became of each, also when the run ends early.

        Raises:
            RunEnded: the connection is gone, or we were told to stop.
        """
        every = [_Leaving(each, RemovalResult(each.name, "not_tried", each.what)) for each in removals]
        try:
            row = self.session.one("SELECT oid FROM pg_roles WHERE rolname = current_user")
            assert row is not None
            self._me = row[0]
            logins = [each for each in every if each.removal.what in {"login", "kept"}]
            for leaving in logins:
                self._guarded(leaving, self._shut)
            self._end_sessions([each for each in logins if each.shut])
            for leaving in every:
                if not leaving.done:
                    self._guarded(leaving, self._finish)
        finally:
            results += [each.result for each in every]

    def _guarded(self, leaving: _Leaving, action: Callable[[_Leaving], None]) -> None:
        try:
            action(leaving)
        except StatementRefused as error:
            reason = "; ".join([str(error), *leaving.others])
            log.error("could not remove %s: %s", leaving.role, reason, extra={"login": leaving.role})  # noqa: TRY400 - no traceback
            leaving.end(result="disabled" if leaving.shut else "failed", why=reason)

    # --- first round: nobody comes in --------------------------------------------------------------------------------

    def _shut(self, leaving: _Leaving) -> None:
        role = leaving.removal.role
        row = self.session.one(
            "SELECT rolname, shobj_description(oid, 'pg_authid') FROM pg_roles WHERE oid = %s", (role.oid,)
        )
        if row is None:
            leaving.end(result="removed", why="it was gone already")
            return
        label = mark.decode(row[1], self.provision)
        if label is None or label.role != row[0] or row[0] != role.name:
            leaving.end(result="failed", why="it was changed by another hand while this run was under way")
            return
        if not role.held and role.administered:
            self.session.execute(hold(self.server, role.name))
        self._no_login(leaving)
        leaving.shut = True
        self._expel_members(leaving, label)

    def _no_login(self, leaving: _Leaving) -> None:
        """NOLOGIN, committed alone. The login may hold up just that: it may alter its own password and not commit."""
        statement = sql.SQL("ALTER ROLE {} NOLOGIN PASSWORD NULL CONNECTION LIMIT 0").format(name(leaving.role))
        give_up = time.monotonic() + _SHUT_SECONDS
        self.session.execute(sql.SQL("SET lock_timeout = {}").format(_SHUT_LOCK_TIMEOUT))
        try:
            while True:
                try:
                    self.session.execute(statement)
                    break
                except StatementRefused as error:
                    if error.sqlstate not in PASSING or time.monotonic() > give_up:
                        raise
                # One look only: while it may log in, its sessions come again and again.
                self._end_those([leaving.oid], [leaving], quiet=False)
                self._roll_back_prepared(leaving.role)
        finally:
            if not self.session.connection.closed:
                self.session.execute("SET lock_timeout = '3s'")
        self._roll_back_prepared(leaving.role)

    def _roll_back_prepared(self, role: str) -> None:
        """A prepared transaction outlives its session and holds its locks: undone in its database, as its owner."""
        for gid, database in self.session.execute(
            "SELECT gid, database FROM pg_prepared_xacts WHERE owner = %s ORDER BY 1", (role,)
        ):
            with enter(self.link, self.session, database) as inside, inside.acting_as(role):
                inside.execute(sql.SQL("ROLLBACK PREPARED {}").format(gid))

    def _expel_members(self, leaving: _Leaving, label: mark.Mark) -> None:
        """Ends what others can do as this login: their membership, and sessions that may have switched to it.

        Which sessions have switched can't be seen, so all of these members' are ended. Who they are is noted in the
        mark, in the transaction that ends the membership.
        """
        members = self.session.execute(_MEMBERS, {"oid": leaving.oid, "me": self._me})
        known = {row[0] for row in members}
        if isinstance(label, mark.Login):
            known |= set(label.members)
        if not known:
            return
        with self.session.transaction():
            if isinstance(label, mark.Login):
                noted = mark.Login(label.node, label.module, tuple(sorted(known)))
                self._comment(leaving.role, noted)
            for _, member, direct in members:
                if direct:
                    self.session.execute(sql.SQL("REVOKE {} FROM {}").format(name(leaving.role), name(member)))
        self._end_those(sorted(known), [leaving], quiet=False)
        for _, member, direct in self.session.execute(_MEMBERS, {"oid": leaving.oid, "me": self._me}):
            if direct:
                leaving.others.append(f"{member} is a member of it by a superuser's grant")

    def _comment(self, role: str, label: mark.Mark) -> None:
        self.session.execute(sql.SQL("COMMENT ON ROLE {} IS {}").format(name(role), mark.encode(label, self.provision)))

    # --- second round: nobody is in ----------------------------------------------------------------------------------

    def _end_sessions(self, leaving: list[_Leaving]) -> None:
        if leaving:
            self._end_those([each.oid for each in leaving], leaving)

    def _end_those(self, oids: list[int], leaving: Iterable[_Leaving], *, quiet: bool = True) -> None:
        """Ends these roles' sessions, until two looks in a row see none; or just those of one look.

        What can't be ended is told to each that is leaving.
        """
        counted = {each.oid: each for each in leaving}
        first = next(iter(counted.values()))
        give_up = time.monotonic() + _END_SECONDS + _END_SECONDS_EACH * len(oids)
        refused: dict[int, str] = {}
        calm = 0
        while calm < 2:
            found = [row for row in self.session.execute(_WHOSE, (oids,)) if row[0] not in refused]
            if found and time.monotonic() > give_up:
                for oid in {row[1] for row in found}:
                    counted.get(oid, first).lingering.append("it has sessions again and again")
                return
            calm = 0 if found else calm + 1
            for pid, oid, user, database in found:
                target = counted.get(oid, first)
                try:
                    self.session.execute(
                        sql.SQL("SELECT pg_terminate_backend({}, {})").format(pid, _TERMINATE_MILLISECONDS)
                    )
                    target.result = evolve(target.result, sessions_ended=target.result.sessions_ended + 1)
                except StatementRefused as error:
                    if error.sqlstate != INSUFFICIENT_PRIVILEGE:
                        raise
                    where = database or "no database"
                    refused[pid] = f"a session of {user} in {where} (process {pid}) can't be ended by us"
                    (target.lingering if oid in counted else target.others).append(refused[pid])
            if not quiet:
                return
            if calm < 2:
                self.link.pause(self.quiet_seconds)

    # --- third round: the role goes, the data stays or goes ----------------------------------------------------------

    def _finish(self, leaving: _Leaving) -> None:
        removal = leaving.removal
        if removal.what == "database":
            self._drop_database(removal.name)
            leaving.end(result="removed", database="dropped", databases=(removal.name,))
            return
        if removal.what == "group":
            clear(self.link, self.session, self.provision, leaving.role, leaving.oid, lambda _: None)
            self._drop_role(leaving)
            leaving.end(result="removed")
            return
        if removal.why is not None:
            raise StatementRefused(removal.why)
        if leaving.lingering:
            # After DROP ROLE nobody but a superuser could end them.
            raise StatementRefused("; ".join(leaving.lingering))
        self._roll_back_prepared(leaving.role)
        databases = tuple(
            row[0]
            for row in self.session.execute(
                "SELECT datname FROM pg_database WHERE datdba = %s ORDER BY 1", (leaving.oid,)
            )
        )
        owns = self.session.one(
            "SELECT FROM pg_shdepend WHERE refclassid = 'pg_authid'::regclass AND refobjid = %s AND deptype = 'o'",
            (leaving.oid,),
        )
        if self.on_revoke == "retain" and owns is not None:
            self._keep(leaving)
            leaving.end(result="removed", database="retained", databases=databases)
            return
        for database in databases:
            self._drop_database(database)
        clear(self.link, self.session, self.provision, leaving.role, leaving.oid, _heir)
        self._drop_role(leaving)
        leaving.end(result="removed", database="dropped" if databases else "", databases=databases)

    def _keep(self, leaving: _Leaving) -> None:
        label = leaving.removal.role.mark
        if not isinstance(label, mark.Login):
            raise StatementRefused("it has come to own something while this run was under way")
        kept = mark.Kept(label.node, label.module, self.now)
        row = self.session.one(
            "SELECT shobj_description(oid, 'pg_authid') FROM pg_roles WHERE rolname = %s", (kept.role,)
        )
        if row is None and not leaving.others:
            with self.session.transaction():
                self.session.execute(sql.SQL("ALTER ROLE {} RENAME TO {}").format(name(leaving.role), name(kept.role)))
                self._comment(kept.role, kept)
            self._end_those([leaving.oid], [leaving], quiet=False)
            return
        # Somebody may still act as this very role: so another gets all that it owns, and it goes.
        if row is None:
            with self.session.transaction():
                self.session.execute(sql.SQL("CREATE ROLE {} NOLOGIN").format(name(kept.role)))
                self._comment(kept.role, kept)
                if not self.server.superuser:
                    self.session.execute(hold(self.server, kept.role))
        elif not isinstance(mark.decode(row[0], self.provision), mark.Kept):
            raise StatementRefused(f"a role called {kept.role} exists and this provisioner did not make it")
        hand_over(self.link, self.session, self.provision, leaving.role, kept.role)

    def _drop_role(self, leaving: _Leaving) -> None:
        # Once more: after DROP ROLE its sessions could not be found any more.
        if leaving.removal.what != "group":
            self._end_those([leaving.oid], [leaving], quiet=False)
        self.link.patiently(lambda: self.session.execute(sql.SQL("DROP ROLE {}").format(name(leaving.role))))

    def _drop_database(self, database: str) -> None:
        row = self.session.one("SELECT datconnlimit = -2 FROM pg_database WHERE datname = %s", (database,))
        if row is None:
            return
        target = name(database)
        if not row[0]:
            self.session.execute(sql.SQL("ALTER DATABASE {} IS_TEMPLATE false").format(target))
            for (owner,) in self.session.execute(
                """SELECT DISTINCT owner FROM pg_prepared_xacts
                   WHERE database = %s AND pg_has_role(owner, 'MEMBER')""",
                (database,),
            ):
                self._roll_back_prepared(owner)
            self.session.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(target))
        statement = sql.SQL("DROP DATABASE {} WITH (FORCE)").format(target)
        try:
            self.link.patiently(lambda: self.session.execute(statement))
        except StatementRefused as error:
            who = self.session.execute(
                "SELECT DISTINCT usename FROM pg_stat_activity WHERE datname = %s ORDER BY 1", (database,)
            )
            there = f" (connected to it: {', '.join(str(row[0]) for row in who)})" if who else ""
            raise StatementRefused(f"{error}{there}", error.sqlstate) from None


def _heir(place: Place) -> str | None:
    """In a database of ours its owner gets what a departed login made there. Elsewhere nobody may get it from us.

    We least of all: a function of its that runs as its owner would then run as the provisioner.
    """
    return place.owner if place.ours else None
