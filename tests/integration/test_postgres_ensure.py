"""What is asked for becomes true on a real PostgreSQL, for a login that is not a superuser (mesh.md A7)."""

import base64
import os
from typing import Any

import psycopg
import pytest

from provisioner.grants import naming, scram
from provisioner.grants.report import Report
from provisioner.secret import Secret
from tests.integration.postgres_lab import PROVISIONER, Connection, Lab, consumer

WIKI = consumer("n1", "wiki")
MAIL = consumer("n1", "mail")


def results(report: Report) -> dict[str, str]:
    return {each.login: each.result for each in report.consumers} | {
        each.login: each.result for each in report.removed if each.what == "login"
    }


def why(report: Report, login: str) -> str:
    return {each.login: each.why for each in report.consumers}[login]


def rows(session: Connection, statement: str) -> list[tuple[Any, ...]]:
    return session.execute(statement.encode()).fetchall()


# --- create, set, rotate ---------------------------------------------------------------------------------------------


def test_a_login_that_works(lab: Lab) -> None:
    lab.secret("n1", "wiki", "one\n")
    lab.write(WIKI)
    report = lab.run(verify=True)
    assert results(report) == {"n1.wiki": "created"}
    assert report.exit_code == 0
    with lab.login("n1.wiki", "one") as session:
        session.execute("CREATE TABLE page (text text)")
        session.execute("CREATE TEMPORARY TABLE scratch (n int)")
        assert rows(
            session, "SELECT rolsuper OR rolcreaterole OR rolcreatedb FROM pg_roles WHERE rolname = 'n1.wiki'"
        ) == [(False,)]


def test_a_second_run_changes_nothing_but_the_password(lab: Lab) -> None:
    lab.secret("n1", "wiki", "one")
    lab.secret("n1", "mail", "two")
    lab.write(WIKI, MAIL)
    assert lab.run().exit_code == 0
    before = lab.catalogue()
    lab.do("ALTER ROLE \"n1.wiki\" PASSWORD 'changed by itself'")
    report = lab.run()
    assert results(report) == {"n1.wiki": "set", "n1.mail": "set"}
    assert lab.catalogue() == before
    assert lab.works("n1.wiki", "one")
    writes = [each for each in lab.statements if each.split()[0] not in {"SELECT", "WITH"}]
    assert len(writes) == 2
    assert all(each.startswith("ALTER ROLE ") for each in writes)


def test_a_rotation_takes_effect_and_leaves_open_sessions_alone(lab: Lab) -> None:
    path = lab.secret("n1", "wiki", "old")
    lab.secret("n1", "mail", "two")
    lab.write(WIKI, MAIL)
    assert lab.run().exit_code == 0
    with lab.login("n1.wiki", "old") as session, lab.login("n1.mail", "two") as untouched:
        lab.secret("n1", "wiki", "new")
        assert lab.run().exit_code == 0
        assert lab.works("n1.wiki", "new")
        assert not lab.works("n1.wiki", "old")
        assert rows(session, "SELECT 1") == rows(untouched, "SELECT 1") == [(1,)]
    # in place, with the same size and the same time
    status = path.stat()
    path.write_text("NEW")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert lab.run().exit_code == 0
    assert lab.works("n1.wiki", "NEW")


def test_verify_tries_the_replaced_password(lab: Lab) -> None:
    lab.secret("n1", "wiki", "new")
    lab.write(WIKI)
    lab.former = {"n1.wiki": Secret("old")}
    report = lab.run(verify=True)
    assert [each.verified for each in report.consumers] == ["password accepted"]


def test_what_another_hand_did_to_a_login_is_undone(lab: Lab) -> None:
    lab.secret("n1", "wiki", "one")
    lab.write(WIKI)
    assert lab.run().exit_code == 0
    before = lab.catalogue()
    lab.do("ALTER ROLE \"n1.wiki\" NOLOGIN NOINHERIT CONNECTION LIMIT 0 VALID UNTIL '2001-01-01'")
    lab.do('ALTER DATABASE "n1.wiki" ALLOW_CONNECTIONS false')
    lab.do('GRANT CONNECT ON DATABASE "n1.wiki" TO PUBLIC')
    by = f"GRANTED BY {PROVISIONER}" if lab.major >= 16 else ""
    lab.do(f'REVOKE "n1.wiki" FROM {PROVISIONER} {by}')
    assert lab.run(check=True).exit_code == 1
    report = lab.run()
    assert report.exit_code == 0, list(report.lines())
    assert lab.works("n1.wiki", "one")
    assert lab.catalogue() == before
    assert lab.run(check=True).exit_code == 0


def test_every_login_has_its_own_database_and_no_other(lab: Lab) -> None:
    lab.secret("n1", "wiki", "one")
    lab.secret("n1", "mail", "two")
    lab.write(consumer("n1", "wiki", name="pages"), MAIL)
    assert lab.run().exit_code == 0
    assert lab.databases() == {"pages", "n1.mail"}
    assert lab.works("n1.wiki", "one", "pages")
    assert not lab.works("n1.wiki", "one", "n1.mail")


def test_nobody_slips_into_a_database_before_it_is_closed(lab: Lab) -> None:
    lab.do("CREATE ROLE stranger LOGIN PASSWORD 'x'")
    lab.secret("n1", "wiki", "one")
    lab.write(WIKI)
    entered: list[bool] = []

    def try_it(statement: str) -> None:
        if "DATABASE" in statement.split("WHERE", maxsplit=1)[0] and not statement.startswith("CREATE"):
            entered.append(lab.works("stranger", "x", "n1.wiki"))

    assert lab.run(on_statement=try_it).exit_code == 0
    assert len(entered) >= 4
    assert not any(entered)
    assert lab.works("n1.wiki", "one")


# --- what the operator owns ------------------------------------------------------------------------------------------


def test_a_foreign_role_is_never_touched(lab: Lab) -> None:
    lab.do("CREATE ROLE \"n1.wiki\" LOGIN PASSWORD 'theirs'")
    lab.do("CREATE ROLE \"n9.hand\" LOGIN PASSWORD 'made by hand'")
    lab.secret("n1", "wiki", "ours")
    lab.secret("n1", "mail", "two")
    before = lab.catalogue()
    lab.write(WIKI)
    report = lab.run()
    assert results(report) == {"n1.wiki": "failed"}
    assert why(report, "n1.wiki") == "a role called n1.wiki exists and this provisioner did not make it"
    assert report.exit_code == 1
    assert lab.catalogue() == before
    assert lab.works("n1.wiki", "theirs", "postgres")
    lab.write()
    assert lab.run().exit_code == 0
    assert lab.catalogue() == before


def test_a_foreign_database_is_never_touched(lab: Lab) -> None:
    lab.do("CREATE DATABASE pages")
    lab.secret("n1", "wiki", "one")
    lab.write(consumer("n1", "wiki", name="pages"))
    before = lab.catalogue()
    report = lab.run(on_revoke="drop")
    assert why(report, "n1.wiki") == "a database called pages exists and this provisioner did not make it"
    assert lab.catalogue() == before


def test_a_mark_written_by_another_hand_is_not_believed(lab: Lab) -> None:
    lab.do("CREATE ROLE hand LOGIN")
    comment = '{"made_by":"postgres-provisioner","v":1,"provision":"database","node":"n1","module":"wiki"}'
    lab.do(f"COMMENT ON ROLE hand IS '{comment}'")
    lab.write()
    report = lab.run(on_revoke="drop")
    assert report.removed == []
    assert lab.roles() == {"hand"}


def test_another_provision_s_logins_are_never_touched(lab: Lab) -> None:
    lab.secret("n1", "wiki", "one")
    lab.write(WIKI, provision="archive")
    assert lab.run(provision="archive").exit_code == 0
    before = lab.catalogue()
    lab.write()
    assert lab.run(on_revoke="drop").removed == []
    assert lab.catalogue() == before
    lab.write(WIKI)
    assert why(lab.run(), "n1.wiki") == "a role called n1.wiki exists and this provisioner did not make it"
    assert lab.works("n1.wiki", "one")


def test_a_login_that_was_given_powers_is_told_on_every_run(lab: Lab) -> None:
    lab.secret("n1", "wiki", "one")
    lab.write(WIKI)
    assert lab.run().exit_code == 0
    lab.do('ALTER ROLE "n1.wiki" CREATEDB')
    report = lab.run()
    assert "n1.wiki was given CREATEDB by another hand" in why(report, "n1.wiki")
    assert report.exit_code == 1
    lab.write()
    for _ in range(2):
        report = lab.run()
        assert (results(report), report.exit_code) == ({"n1.wiki": "disabled"}, 1)
        assert not lab.works("n1.wiki", "one")
    lab.do('ALTER ROLE "n1.wiki" NOCREATEDB')
    assert results(lab.run()) == {"n1.wiki": "removed"}


# --- names and passwords ---------------------------------------------------------------------------------------------


ODD_NAMES = ["a-b", "A", 'a"b', "a'b", "a b", "$x", "%s", "sélect", "1a", "user", "ab\\c", "a=b,c", "%(x)s", "x" * 80]


def test_odd_names_come_and_go(lab: Lab) -> None:
    for name in ODD_NAMES:
        lab.secret("n", name, f"pw {name}")
    lab.write(*(consumer("n", name) for name in ODD_NAMES))
    report = lab.run(verify=True)
    assert report.exit_code == 0, list(report.lines())
    logins = {naming.login_name("n", name) for name in ODD_NAMES}
    assert lab.roles() == lab.databases() == logins
    for name in ODD_NAMES:
        assert lab.works(naming.login_name("n", name), f"pw {name}")
    lab.write()
    report = lab.run(on_revoke="drop")
    assert report.exit_code == 0, list(report.lines())
    assert lab.roles() == lab.databases() == set()


def test_two_names_with_the_same_63_bytes_are_two_logins(lab: Lab) -> None:
    first, second = "a" * 70 + "x", "a" * 70 + "y"
    lab.secret("n", first, "one")
    lab.secret("n", second, "two")
    lab.write(consumer("n", first), consumer("n", second))
    assert lab.run().exit_code == 0
    assert lab.works(naming.login_name("n", first), "one")
    assert not lab.works(naming.login_name("n", first), "two")
    assert lab.works(naming.login_name("n", second), "two")


ODD_PASSWORDS = [
    *(
        "a'b",
        "a\\b",
        "%s",
        "{x}",
        "$1",
        "$$",
        "';DROP ROLE postgres;--",
        " leading and trailing ",
        '"quoted"',
        "x" * 1000,
    ),
    *(
        "md5" + "0123456789abcdef" * 2,
        "SCRAM-SHA-256$4096:AAAA$BBBB:CCCC",
        "\u00e9",
        "e\u0301",
        "a\u00a0b",
        "so\u00adft",
    ),
    *("\ufb01ligature", "\U0001f600", "\x07bell", "\u0627\u0628", "\ufeffbom", "p@ss/w:rd?#%&=", "\u200b"),
]


def test_odd_passwords_are_accepted_as_they_are(lab: Lab) -> None:
    lab.secret("n", "owner", "x")
    entries = [consumer("n", "owner", name="shared")]  # the others read there: a database each takes long to make
    for number, password in enumerate(ODD_PASSWORDS):
        lab.secret("n", f"m{number}", password + "\n")
        entries.append(consumer("n", f"m{number}", name="shared", access="readonly"))
    lab.write(*entries)
    with lab.operator() as session:
        session.execute("ALTER DATABASE postgres SET standard_conforming_strings = off")
        session.execute("ALTER DATABASE postgres SET password_encryption = 'md5'")
    report = lab.run()
    assert report.exit_code == 0, list(report.lines())
    for number, password in enumerate(ODD_PASSWORDS):
        assert lab.works(f"n.m{number}", password, "shared"), repr(password)
    assert lab.do(
        "SELECT count(*) FROM pg_authid WHERE rolname LIKE 'n.%' AND rolpassword NOT LIKE 'SCRAM-SHA-256$%'"
    ) == [(0,)]


def test_our_verifier_is_libpq_s(lab: Lab) -> None:
    """The same text, byte for byte, for the same salt: also for passwords that SASLprep changes or refuses."""
    with lab.operator() as session:
        for password in [*ODD_PASSWORDS, "\u00ad", "\u2060\ufb36", "\u0627a", "\u0221", "\u1680x", "\u034f\u00e9"]:
            theirs = session.pgconn.encrypt_password(password.encode(), b"x", b"scram-sha-256").decode()
            iterations, salt = theirs.split("$")[1].split(":")
            ours = scram.verifier(password, salt=base64.b64decode(salt), iterations=int(iterations))
            assert ours == theirs, repr(password)


# --- one fails, the others don't -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault", ["missing", "empty", "newline", "mode", "directory", "dangling", "nul", "latin-1", "two"]
)
def test_a_bad_secret_leaves_that_login_as_it_was(lab: Lab, fault: str) -> None:
    for module in ("a", "b", "c"):
        lab.secret("n1", module, f"pw-{module}")
    entries = [consumer("n1", module) for module in ("a", "b", "c")]
    lab.write(*entries)
    assert lab.run().exit_code == 0
    for module in ("a", "c"):
        lab.secret("n1", module, f"new-{module}")
    path = lab.grants / "n1.b.secret"
    path.unlink()
    match fault:
        case "empty":
            lab.secret("n1", "b", "")
        case "newline":
            lab.secret("n1", "b", "\r\n")
        case "mode":
            lab.secret("n1", "b", "new-b", mode=0o644)
        case "directory":
            path.mkdir()
        case "dangling":
            path.symlink_to("nothing")
        case "nul":
            lab.secret("n1", "b", b"a\0b")
        case "latin-1":
            lab.secret("n1", "b", b"\xe9")
        case "two":
            lab.secret("n1", "b", "one\ntwo\n")
    report = lab.run()
    assert results(report) == {"n1.a": "set", "n1.b": "failed", "n1.c": "set"}
    assert "secret file" in why(report, "n1.b")
    assert report.exit_code == 1
    assert lab.works("n1.a", "new-a")
    assert lab.works("n1.b", "pw-b")
    assert lab.works("n1.c", "new-c")


def test_an_entry_that_nobody_can_be_told_from_suspends_removals(lab: Lab) -> None:
    lab.secret("n1", "wiki", "one")
    lab.secret("n1", "mail", "two")
    lab.write(WIKI, MAIL)
    assert lab.run().exit_code == 0
    lab.secret("n1", "wiki", "new")
    lab.write(WIKI, {"node": "n1", "modul": "mail"})
    report = lab.run()
    assert results(report) == {"n1.wiki": "set", "n1.mail": "withheld"}
    assert report.exit_code == 1
    assert "entry 2: has no module" in report.withheld
    assert lab.works("n1.wiki", "new")
    assert lab.works("n1.mail", "two")


def test_a_bad_entry_does_not_hold_up_a_revocation(lab: Lab) -> None:
    for module in ("wiki", "mail", "chat"):
        lab.secret("n1", module, module)
    lab.write(WIKI, MAIL, consumer("n1", "chat"))
    assert lab.run().exit_code == 0
    lab.write(WIKI, consumer("n1", "mail", size=3))
    report = lab.run()
    assert results(report) == {"n1.wiki": "set", "n1.mail": "failed", "n1.chat": "removed"}
    assert lab.works("n1.mail", "mail")
    assert not lab.works("n1.chat", "chat")


def test_more_than_allowed_is_not_removed(lab: Lab) -> None:
    for module in ("a", "b", "c"):
        lab.secret("n1", module, module)
    lab.write(*(consumer("n1", module) for module in ("a", "b", "c")))
    assert lab.run().exit_code == 0
    lab.write(consumer("n1", "a"))
    report = lab.run(max_remove=1)
    assert results(report) == {"n1.a": "set", "n1.b": "withheld", "n1.c": "withheld"}
    assert report.exit_code == 1
    assert "2 would be removed" in report.withheld
    assert lab.works("n1.b", "b")
    assert lab.run(max_remove=2).exit_code == 0
    assert lab.roles() == {"n1.a", "n1.b~kept", "n1.c~kept"}


def test_an_empty_list_removes_all_of_ours_and_nothing_else(lab: Lab) -> None:
    lab.do("CREATE ROLE hand LOGIN")
    lab.secret("n1", "wiki", "one")
    lab.secret("n1", "mail", "two")
    lab.write(WIKI, MAIL)
    assert lab.run().exit_code == 0
    lab.write()
    report = lab.run(on_revoke="drop")
    assert results(report) == {"n1.wiki": "removed", "n1.mail": "removed"}
    assert lab.roles() == {"hand"}
    assert lab.databases() == set()


def test_a_dry_run_changes_nothing_and_tells_everything(lab: Lab) -> None:
    lab.secret("n1", "wiki", "one")
    lab.secret("n1", "mail", "two")
    lab.write(WIKI)
    assert lab.run().exit_code == 0
    lab.write(MAIL)
    before = lab.catalogue()
    report = lab.run(dry_run=True)
    assert results(report) == {"n1.mail": "would_create", "n1.wiki": "would_remove"}
    assert report.exit_code == 0
    assert lab.catalogue() == before
    assert all(each.split()[0] in {"SELECT", "WITH"} for each in lab.statements)
    assert lab.run(check=True).exit_code == 1


def test_check_sees_a_changed_password_only_when_it_may_try_it(lab: Lab) -> None:
    lab.secret("n1", "wiki", "one")
    lab.write(WIKI)
    assert lab.run().exit_code == 0
    assert lab.run(check=True, verify=True).exit_code == 0
    lab.do("ALTER ROLE \"n1.wiki\" PASSWORD 'other'")
    assert lab.run(check=True).exit_code == 0
    report = lab.run(check=True, verify=True)
    assert report.exit_code == 1
    assert "its password is refused" in report.consumers[0].verified


# --- access and extensions -------------------------------------------------------------------------------------------


def test_readers_and_writers_of_another_s_database(lab: Lab) -> None:
    lab.secret("n1", "wiki", "w")
    lab.secret("n2", "read", "r")
    lab.secret("n3", "edit", "e")
    owner = consumer("n1", "wiki", name="wiki")
    lab.write(owner)
    assert lab.run().exit_code == 0
    with lab.login("n1.wiki", "w", "wiki") as session:
        session.execute("CREATE TABLE before (n serial)")
        session.execute("CREATE SCHEMA more")
    lab.write(
        owner,
        consumer("n2", "read", name="wiki", access="readonly"),
        consumer("n3", "edit", name="wiki", access="readwrite"),
    )
    report = lab.run(verify=True)
    assert report.exit_code == 0, list(report.lines())
    with lab.login("n1.wiki", "w", "wiki") as session:
        session.execute("CREATE TABLE more.after (n serial)")
        session.execute("CREATE SCHEMA later")
        session.execute("CREATE TABLE later.still (n serial)")
    tables = ("before", "more.after", "later.still")
    with lab.login("n3.edit", "e", "wiki") as session:
        for table in tables:
            session.execute(f"INSERT INTO {table} DEFAULT VALUES".encode())
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            session.execute("CREATE TABLE mine (n int)")
    with lab.login("n2.read", "r", "wiki") as session:
        for table in tables:
            assert rows(session, f"SELECT count(*) FROM {table}") == [(1,)]
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                session.execute(f"INSERT INTO {table} DEFAULT VALUES".encode())
        # what it may do is taken away at once, in open sessions too
        lab.write(owner, consumer("n3", "edit", name="wiki", access="readonly"), consumer("n2", "read"))
        assert lab.run().exit_code == 0
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            session.execute("SELECT count(*) FROM before")
    with lab.login("n3.edit", "e", "wiki") as session:
        assert rows(session, "SELECT count(*) FROM before") == [(1,)]
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            session.execute("INSERT INTO before DEFAULT VALUES")
    lab.write(owner)
    report = lab.run()
    assert report.exit_code == 0, list(report.lines())
    assert lab.roles() == {"n1.wiki", "n2.read~kept"}


def test_a_reader_that_came_to_own_something_can_be_removed(lab: Lab) -> None:
    lab.secret("n1", "wiki", "w")
    lab.secret("n2", "read", "r")
    owner = consumer("n1", "wiki", name="wiki")
    lab.write(owner, consumer("n2", "read", name="wiki", access="readonly"))
    assert lab.run().exit_code == 0
    with lab.login("n2.read", "r", "wiki") as session:
        session.execute("SELECT lo_create(0)")
    lab.write(owner)
    report = lab.run(on_revoke="drop")
    assert report.exit_code == 0, list(report.lines())
    assert lab.roles() == {"n1.wiki"}


def test_extensions_belong_to_the_consumer(lab: Lab) -> None:
    available = {name for (name,) in lab.do("SELECT name FROM pg_available_extensions")}
    if "citext" not in available:
        pytest.skip("these binaries have no contrib extensions")
    lab.secret("n1", "wiki", "w")
    lab.write(consumer("n1", "wiki", name="wiki", extensions=["citext"]))
    assert "--extensions" in why(lab.run(), "n1.wiki")
    report = lab.run(extensions=["citext"])
    assert report.exit_code == 0, list(report.lines())
    assert lab.do(
        """SELECT nspname, pg_get_userbyid(extowner) FROM pg_extension JOIN pg_namespace n ON n.oid = extnamespace
           WHERE extname = 'citext'""",
        "wiki",
    ) == [("public", "n1.wiki")]
    assert lab.run(extensions=["citext"]).exit_code == 0
    lab.write(consumer("n1", "wiki", name="wiki", extensions=["citext", "dblink"]))
    report = lab.run(extensions=["citext", "dblink"])
    assert "permission denied to create extension" in why(report, "n1.wiki")
    assert lab.works("n1.wiki", "w", "wiki")


def test_a_half_dropped_database_is_made_anew(lab: Lab) -> None:
    lab.secret("n1", "wiki", "w")
    lab.write(WIKI)
    assert lab.run().exit_code == 0
    before = lab.catalogue()
    lab.do("UPDATE pg_database SET datconnlimit = -2 WHERE datname = 'n1.wiki'")
    report = lab.run(verify=True)
    assert report.exit_code == 0, list(report.lines())
    assert lab.catalogue() == before


def test_a_provisioner_that_is_a_superuser(lab: Lab) -> None:
    base = lab.server.dsn() | {"password": lab.server.password.reveal()}
    lab.secret("n1", "wiki", "w")
    lab.secret("n2", "read", "r")
    lab.write(consumer("n1", "wiki", name="wiki"), consumer("n2", "read", name="wiki", access="readonly"))
    report = lab.run(base=base, verify=True)
    assert report.exit_code == 0, list(report.lines())
    assert lab.run(base=base, check=True).exit_code == 0
    lab.write()
    assert lab.run(base=base).exit_code == 0
    assert lab.roles() == {"n1.wiki~kept"}
    lab.write(consumer("n1", "wiki", name="wiki"))
    assert lab.run(base=base, verify=True).exit_code == 0
    lab.write()
    assert lab.run(base=base, on_revoke="drop").exit_code == 0
    assert lab.roles() == lab.databases() == set()


def test_a_server_that_lets_everybody_in_is_found_out(lab: Lab) -> None:
    """A password that works where none is asked for proves nothing."""
    rules = lab.server.directory / "data" / "pg_hba.conf"
    before = rules.read_text()
    lab.secret("n1", "wiki", "w")
    lab.write(WIKI)
    try:
        rules.write_text('local "n1.wiki" all trust\n' + before)
        lab.do("SELECT pg_reload_conf()")
        while not lab.do("SELECT 1 FROM pg_hba_file_rules WHERE auth_method = 'trust'"):
            pass
        report = lab.run(verify=True)
        assert report.exit_code == 1
        assert why(report, "n1.wiki") == "its password is refused, or the server lets it in without asking for one"
    finally:
        rules.write_text(before)
        lab.do("SELECT pg_reload_conf()")
