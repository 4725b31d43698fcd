"""Getting into consumers' databases, and moving or clearing what a role owns and holds in all of them.

``REASSIGN OWNED`` and ``DROP OWNED`` act on one database only, but the first moves the ownership of *every* database
too (postgres-versions 5): so the question of the databases is always settled before.
"""

from collections.abc import Callable

from attrs import frozen
from psycopg import sql

from provisioner.errors import StatementRefused
from provisioner.grants import mark
from provisioner.grants.postgres import Link, Session

_PLACES = """
SELECT d.datname, pg_get_userbyid(d.datdba), shobj_description(d.datdba, 'pg_authid'), d.datconnlimit = -2
FROM (SELECT DISTINCT dbid FROM pg_shdepend WHERE refclassid = 'pg_authid'::regclass AND refobjid = %s) s
LEFT JOIN pg_database d ON d.oid = s.dbid
ORDER BY d.datname NULLS LAST"""


def name(text: str) -> sql.Identifier:
    """A name in a statement: always quoted."""
    return sql.Identifier(text)


@frozen
class Place:
    """A database in which a role owns or holds something. ``ours``: we made its owner."""

    database: str
    owner: str
    ours: bool


def enter(link: Link, session: Session, database: str, *, ours: bool = True) -> Session:
    """A session in a database. If it is one of ours and its owner has shut us out, that is undone from outside.

    No more of it than it takes: the owner's settings are its own, and each of our sessions overrides them.
    """
    target = name(database)
    remedies = (
        (
            sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS true CONNECTION LIMIT -1").format(target),
            sql.SQL("GRANT CONNECT ON DATABASE {} TO CURRENT_USER").format(target),
        ),
        (sql.SQL("ALTER DATABASE {} RESET ALL").format(target),),
    )
    for remedy in remedies:
        try:
            return link.connect(database)
        except StatementRefused:
            if not ours:
                raise
        for statement in remedy:
            session.execute(statement)
    return link.connect(database)


def clear(
    link: Link, session: Session, provision: str, role: str, oid: int, heir: Callable[[Place], str | None]
) -> None:
    """Takes from a role everything that it holds, in all databases, so that it can be dropped.

    Args:
        link: how other databases are reached.
        session: the session that this runs in.
        provision: the provision that this run serves.
        role: the role.
        oid: its object id.
        heir: who gets what it owns in a database; None to drop that with all it has there.

    Raises:
        StatementRefused: something stays: a grant by a superuser, a lock that isn't released.
    """
    for database, owner, comment, invalid in session.execute(_PLACES, (oid,)):
        if database is None:
            link.patiently(lambda: session.execute(sql.SQL("DROP OWNED BY {}").format(name(role))))
            continue
        if invalid:
            raise StatementRefused(f"the database {database} is half dropped")
        label = mark.decode(comment, provision)
        ours = label is not None and label.role == owner
        with enter(link, session, database, ours=ours) as inside:
            to = heir(Place(database, owner, ours))
            if to is not None:
                statement = sql.SQL("REASSIGN OWNED BY {} TO {}").format(name(role), name(to))
                link.patiently(lambda inside=inside, statement=statement: inside.execute(statement))  # type: ignore[misc]
            statement = sql.SQL("DROP OWNED BY {}").format(name(role))
            link.patiently(lambda inside=inside, statement=statement: inside.execute(statement))  # type: ignore[misc]


def hand_over(link: Link, session: Session, provision: str, giver: str, taker: str) -> None:
    """Everything of one role becomes another's; then the first is dropped.

    Both must be ours and held. A run that ends in the middle is completed by the next: each step is true or not yet.
    """
    row = session.one("SELECT oid FROM pg_roles WHERE rolname = %s", (giver,))
    if row is None:
        return
    for (database,) in session.execute("SELECT datname FROM pg_database WHERE datdba = %s ORDER BY 1", (row[0],)):
        statement = sql.SQL("ALTER DATABASE {} OWNER TO {}").format(name(database), name(taker))
        link.patiently(lambda statement=statement: session.execute(statement))  # type: ignore[misc]
    clear(link, session, provision, giver, row[0], lambda _: taker)
    session.execute(sql.SQL("DROP ROLE {}").format(name(giver)))
