"""Reads what is on the server: a handful of statements however many consumers there are."""

import hashlib
import logging
from collections.abc import Collection

from psycopg import sql

from provisioner.errors import GrantError, RunEnded, StatementRefused
from provisioner.grants import mark
from provisioner.grants.catalogue import POWERS, Catalogue, Database, Role, Server
from provisioner.grants.postgres import APPLICATION, Session

log = logging.getLogger(__name__)

OLDEST = 140000
"""``pg_terminate_backend`` with a time, on which revocation stands, came with 14."""
_FIRST_WITH_SET_OPTION = 160000
_LOCK_TRIES = 20
_LOCK_GRACE_TRIES = 10
"""A run that has just ended, or was killed, holds the lock until the server has seen its connection go."""
_LOCK_PAUSE = 0.1

_SELF = """
SELECT current_setting('server_version_num')::int, pg_is_in_recovery(), current_setting('transaction_read_only') = 'on',
       rolname, rolsuper, rolcreaterole, rolcreatedb, rolinherit
FROM pg_roles WHERE rolname = current_user"""

# pg_has_role(…, 'MEMBER WITH ADMIN OPTION') would say the same, and look through all our memberships for each of them:
# with 2,000 roles it took 53 s.
_ROLES = """
WITH RECURSIVE me AS (
    SELECT oid FROM pg_roles WHERE rolname = current_user
    UNION SELECT m.roleid FROM pg_auth_members m JOIN me ON m.member = me.oid)
SELECT r.oid, r.rolname, r.rolcanlogin,
       r.rolsuper, r.rolcreaterole, r.rolcreatedb, r.rolreplication, r.rolbypassrls,
       r.rolconnlimit <> -1 OR NOT r.rolinherit OR coalesce(r.rolvaliduntil <> 'infinity', false),
       EXISTS (SELECT FROM pg_shdepend WHERE refclassid = 'pg_authid'::regclass AND refobjid = r.oid AND deptype = 'o'),
       %(superuser)s OR r.oid IN (SELECT roleid FROM pg_auth_members JOIN me ON member = me.oid WHERE admin_option),
       pg_has_role(r.oid, 'USAGE') AND pg_has_role(r.oid, %(hold)s),
       shobj_description(r.oid, 'pg_authid')
FROM pg_roles r
WHERE r.rolname = ANY (%(names)s)
   OR r.oid IN (SELECT objoid FROM pg_shdescription
                WHERE classoid = 'pg_authid'::regclass AND strpos(description, %(made_by)s) > 0)"""

_DATABASES = """
SELECT d.oid, d.datname, d.datdba, shobj_description(d.oid, 'pg_database') IS NOT NULL,
       d.datallowconn AND d.datconnlimit <> 0, d.datistemplate, d.datconnlimit = -2,
       coalesce(bool_or(a.grantee = 0), false),
       count(*) FILTER (WHERE a.grantee = d.datdba AND a.grantor = d.datdba) >= 3
FROM pg_database d
LEFT JOIN LATERAL aclexplode(coalesce(d.datacl, acldefault('d', d.datdba))) a ON true
WHERE d.datname = ANY (%s) OR d.datdba = ANY (%s::oid[])
GROUP BY d.oid, d.datname, d.datdba, d.datallowconn, d.datconnlimit, d.datistemplate"""

_MEMBERS = """
SELECT DISTINCT g.rolname, m.rolname
FROM pg_auth_members JOIN pg_roles g ON g.oid = roleid JOIN pg_roles m ON m.oid = member
WHERE roleid = ANY (%s::oid[])"""


def identify(session: Session) -> Server:
    """Who we are on the server, and whether we can do our work there.

    Raises:
        RunEnded: it is a standby or read only now.
        GrantError: the server is too old, or our login lacks what it needs; the message has the statement.
    """
    row = session.one(_SELF)
    assert row is not None
    version, recovering, read_only, user, superuser, createrole, createdb, inherit = row
    if recovering:
        raise RunEnded("the server is a standby: roles can be changed on the primary only")
    if read_only:
        raise RunEnded("the server is read only (default_transaction_read_only is on)")
    if version < OLDEST:
        raise GrantError(f"PostgreSQL 14 or newer is needed (found {version // 10000})")
    name = sql.Identifier(user).as_string(session.connection)
    if not superuser and not (createrole and createdb):
        raise GrantError(
            f"the login {user} lacks what it needs: an operator must run ALTER ROLE {name} CREATEROLE CREATEDB"
        )
    if not superuser and not inherit and version < _FIRST_WITH_SET_OPTION:
        raise GrantError(f"the login {user} is NOINHERIT: before PostgreSQL 16 it needs ALTER ROLE {name} INHERIT")
    return Server(version=version, user=user, superuser=superuser)


def take_lock(session: Session, provision: str) -> None:
    """Takes the lock that only one run for a provision may hold; it goes with the connection.

    A consumer can connect here and take it too, to stop its own revocation. So when the holder is a login that we made,
    its session is ended.

    Raises:
        RunEnded: another run holds it, or somebody that is not ours.
    """
    key = int.from_bytes(hashlib.sha256(f"{APPLICATION}:{provision}".encode()).digest()[:8], "big", signed=True)
    for attempt in range(_LOCK_TRIES):
        row = session.one("SELECT pg_try_advisory_lock(%s)", (key,))
        if row is not None and row[0]:
            return
        holders = session.execute(
            """SELECT a.pid, a.usename, a.application_name, l.granted, shobj_description(a.usesysid, 'pg_authid')
               FROM pg_locks l JOIN pg_stat_activity a USING (pid)
               WHERE l.locktype = 'advisory' AND l.objsubid = 1
                 AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
                 AND (l.classid::bigint << 32) | l.objid::bigint = %s""",
            (key,),
        )
        for pid, user, application, granted, comment in holders:
            label = mark.decode(comment, provision)
            if isinstance(label, mark.Login) and label.role == user:
                log.warning("ending a session of %s, which holds this program's lock", user, extra={"login": user})
                try:
                    session.execute("SELECT pg_terminate_backend(%s, 2000)", (pid,))
                except StatementRefused as error:
                    raise RunEnded(f"{user} holds this program's lock and can't be ended: {error}") from None
            elif granted and attempt >= _LOCK_GRACE_TRIES:
                raise RunEnded(
                    f"another run is under way: {user} ({application or 'no name'}, process {pid}) has the lock"
                )
        session.link.pause(_LOCK_PAUSE)
    raise RunEnded("this program's lock is taken again and again")


def survey(
    session: Session, server: Server, provision: str, roles: Collection[str], databases: Collection[str]
) -> Catalogue:
    """The picture of everything that is ours, and of whatever has a name that we want.

    Args:
        session: the connection.
        server: from ``identify``.
        provision: the provision that this run serves.
        roles: names that the manifest will want for roles.
        databases: names that it will want for databases.
    """
    newer = server.version >= _FIRST_WITH_SET_OPTION
    rows = session.execute(
        _ROLES,
        {
            "names": list(roles),
            "made_by": mark.MADE_BY,
            "superuser": server.superuser,
            "hold": "SET" if newer else "MEMBER",
        },
    )
    found = {}
    for oid, name, login, *powers, limited, owns, admin, held_now, comment in rows:
        label = mark.decode(comment, provision)
        found[name] = Role(
            oid=oid,
            name=name,
            login=login,
            powers=tuple(power for power, has in zip(POWERS, powers, strict=True) if has),
            limited=limited,
            owns=owns,
            # Before 16 whoever has CREATEROLE may alter every role; the ADMIN OPTION is what survives an upgrade.
            administered=admin or not newer,
            held=held_now and admin,
            mark=label,
            stale=label is not None and comment != mark.encode(_settled(label), provision),
        )
    ours = [role.oid for role in found.values() if role.is_marked]
    groups = [role.oid for role in found.values() if role.is_marked and isinstance(role.mark, mark.Group)]
    held_databases = session.execute(_DATABASES, (list(databases), ours))
    members = session.execute(_MEMBERS, (groups,)) if groups else []
    return Catalogue(
        server=server,
        roles=found,
        databases={row[1]: Database(*row) for row in held_databases},
        members=frozenset((group, member) for group, member in members if member != server.user),
    )


def _settled(label: mark.Mark) -> mark.Mark:
    """The mark as it is when no revocation is under way."""
    return mark.Login(label.node, label.module) if isinstance(label, mark.Login) else label
