"""What this program believes about PostgreSQL, asked of PostgreSQL itself (mesh.md A6; postgres-versions 1 to 8).

Should a newer major answer otherwise, it is here that it shows first.
"""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.integration.postgres_lab import PASSWORD, PROVISIONER, Connection, Lab

VERIFIER = (
    "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ=="
    "$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="
)
"""Of the password "pencil"."""


@pytest.fixture
def p(lab: Lab) -> Iterator[Connection]:
    """The provisioner's own session; it has made one login, ``l``, with the password "pencil"."""
    with lab.login(PROVISIONER, PASSWORD, "postgres") as session:
        session.execute(f"CREATE ROLE l LOGIN PASSWORD '{VERIFIER}'".encode())
        yield session


def hold(session: Connection, role: str = "l") -> None:
    newer = session.info.server_version >= 160000
    options = "WITH INHERIT TRUE, SET TRUE" if newer else "WITH ADMIN OPTION"
    session.execute(f"GRANT {role} TO CURRENT_USER {options}".encode())


def code(session: Connection, statement: str, values: Any = None) -> str:
    """The SQLSTATE that a statement is refused with; empty when it isn't."""
    try:
        session.execute(statement.encode(), values)
    except psycopg.Error as error:
        return error.sqlstate or "?"
    return ""


def test_role_mark_and_membership_are_one_step(lab: Lab, p: Connection) -> None:
    p.execute("BEGIN")
    p.execute("CREATE ROLE m LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS")
    p.execute("COMMENT ON ROLE m IS 'mark'")
    hold(p, "m")
    p.execute("ROLLBACK")
    assert lab.roles() == {"l"}


def test_the_mark_goes_with_the_role(lab: Lab, p: Connection) -> None:
    p.execute("COMMENT ON ROLE l IS 'mark'")
    p.execute("DROP ROLE l")
    assert lab.do("SELECT count(*) FROM pg_shdescription WHERE description = 'mark'") == [(0,)]


def test_what_a_login_may_do_to_itself(lab: Lab, p: Connection) -> None:
    with lab.login("l", "pencil", "postgres") as session:
        assert code(session, "COMMENT ON ROLE l IS 'forged'") == "42501"
        assert code(session, "ALTER ROLE l RENAME TO other") in {"0A000", "42501"}
        assert code(session, "ALTER ROLE l CONNECTION LIMIT 100") == "42501"
        assert code(session, "ALTER ROLE l VALID UNTIL 'infinity'") == "42501"
        assert code(session, "ALTER ROLE l PASSWORD 'own'") == ""
    assert lab.works("l", "own", "postgres")


def test_three_attributes_can_not_even_be_denied_again(p: Connection) -> None:
    for attribute in ("NOSUPERUSER", "NOREPLICATION", "NOBYPASSRLS"):
        assert code(p, f"ALTER ROLE l {attribute}") == "42501"
    assert code(p, "ALTER ROLE l NOCREATEDB NOCREATEROLE INHERIT CONNECTION LIMIT -1 VALID UNTIL 'infinity'") == ""


def test_open_sessions_outlive_a_password_nologin_and_even_the_role(lab: Lab, p: Connection) -> None:
    with lab.login("l", "pencil", "postgres") as session:
        for statement in ("ALTER ROLE l PASSWORD 'new'", "ALTER ROLE l NOLOGIN", "DROP ROLE l"):
            p.execute(statement.encode())
            assert session.execute("SELECT 1").fetchone() == (1,)
        assert not lab.works("l", "new", "postgres")
        assert lab.do("SELECT count(*) FROM pg_stat_activity WHERE usename = 'l'") == [(0,)]


def test_a_password_is_no_parameter_and_a_verifier_will_do(lab: Lab, p: Connection) -> None:
    assert code(p, "ALTER ROLE l PASSWORD %s", ("x",)) == "42601"
    assert lab.works("l", "pencil", "postgres")


def test_an_empty_password_is_accepted_and_useless(lab: Lab, p: Connection) -> None:
    p.execute("ALTER ROLE l PASSWORD ''")
    assert lab.do("SELECT rolpassword FROM pg_authid WHERE rolname = 'l'") == [(None,)]


def test_long_names_are_cut_in_silence(lab: Lab, p: Connection) -> None:
    p.execute(f"CREATE ROLE {'a' * 70}".encode())
    assert "a" * 63 in lab.roles()
    assert code(p, f"CREATE ROLE {'a' * 63}b") == "42710"
    p.execute(f'CREATE ROLE "{"é" * 40}"'.encode())
    assert "é" * 31 in lab.roles()


def test_reserved_names(p: Connection) -> None:
    for name in ("pg_foo", "none", "public"):
        assert code(p, f'CREATE ROLE "{name}"') == "42939"
    for name in ("current_user", "session_user", "user"):
        assert code(p, f'CREATE ROLE "{name}"') == ""


def test_databases_can_not_be_made_in_a_transaction(p: Connection) -> None:
    p.execute("BEGIN")
    assert code(p, "CREATE DATABASE d TEMPLATE template0") == "25001"
    p.execute("ROLLBACK")


def test_without_membership_little_can_be_done_and_some_of_it_lies(lab: Lab, p: Connection) -> None:
    assert code(p, "CREATE DATABASE d OWNER l TEMPLATE template0") == "42501"
    lab.do("CREATE DATABASE d OWNER l TEMPLATE template0")
    warned: list[str | None] = []
    p.add_notice_handler(lambda diagnostic: warned.append(diagnostic.sqlstate))
    assert code(p, "REVOKE CONNECT ON DATABASE d FROM PUBLIC") == ""
    assert warned == ["01006"]
    with lab.login("l", "pencil", "postgres") as session:
        pid = session.info.backend_pid
        assert code(p, f"SELECT pg_terminate_backend({pid})") == "42501"
        hold(p)
        assert p.execute(f"SELECT pg_terminate_backend({pid}, 2000)".encode()).fetchone() == (True,)
    assert code(p, "REVOKE CONNECT ON DATABASE d FROM PUBLIC") == ""
    assert warned == ["01006"]


def test_what_is_owned_anywhere_holds_up_drop_role(lab: Lab, p: Connection) -> None:
    hold(p)
    p.execute("CREATE DATABASE d OWNER l TEMPLATE template0")
    with lab.login("l", "pencil", "d") as session:
        session.execute("CREATE TABLE t (n int)")
    assert code(p, "DROP ROLE l") == "2BP01"
    assert code(p, "DROP OWNED BY l") == ""  # in this database only
    assert lab.do("SELECT tableowner FROM pg_tables WHERE tablename = 't'", "d") == [("l",)]
    p.execute("CREATE ROLE k")
    hold(p, "k")
    p.execute("REASSIGN OWNED BY l TO k")  # here, and every database
    assert lab.do("SELECT pg_get_userbyid(datdba) FROM pg_database WHERE datname = 'd'") == [("k",)]
    assert lab.do("SELECT tableowner FROM pg_tables WHERE tablename = 't'", "d") == [("l",)]


def test_a_rename_takes_everything_along_at_once(lab: Lab, p: Connection) -> None:
    hold(p)
    p.execute("CREATE DATABASE d OWNER l TEMPLATE template0")
    with lab.login("l", "pencil", "d") as session:
        session.execute("BEGIN")
        session.execute("CREATE TABLE t (n int)")
        p.execute("SET lock_timeout = '2s'")
        assert code(p, "ALTER ROLE l RENAME TO k") == ""
        session.execute("COMMIT")
    assert lab.do("SELECT tableowner FROM pg_tables WHERE tablename = 't'", "d") == [("k",)]
    assert lab.do("SELECT pg_has_role('provisioner', 'k', 'USAGE')") == [(True,)]


def test_an_advisory_lock_is_held_once(lab: Lab, p: Connection) -> None:
    assert p.execute("SELECT pg_try_advisory_lock(7)").fetchone() == (True,)
    with lab.login(PROVISIONER, PASSWORD, "postgres") as second:
        assert second.execute("SELECT pg_try_advisory_lock(7)").fetchone() == (False,)


def test_a_foreign_role_is_in_our_hands_before_16_only(lab: Lab, p: Connection) -> None:
    """So the guard must be ours, and is."""
    lab.do("CREATE ROLE foreign_one LOGIN")
    refused = code(p, "ALTER ROLE foreign_one PASSWORD 'x'")
    assert refused == ("42501" if lab.major >= 16 else "")


def test_an_own_transaction_holds_up_nologin(lab: Lab, p: Connection) -> None:
    with lab.login("l", "pencil", "postgres") as session:
        session.execute("BEGIN")
        session.execute("ALTER ROLE l PASSWORD 'x'")
        p.execute("SET lock_timeout = '100ms'")
        assert code(p, "ALTER ROLE l NOLOGIN") == "55P03"
