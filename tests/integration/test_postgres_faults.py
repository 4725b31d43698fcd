"""Everything that can go wrong around a run: other runs, hostile consumers, a server that isn't as it should be."""

import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psycopg
import pytest

from provisioner.grants.report import Report
from tests.integration import postgres_lab
from tests.integration.postgres_lab import PASSWORD, PROVISIONER, Lab, consumer

pytestmark = pytest.mark.timeout(120)

WIKI, MAIL, CHAT = (consumer("n1", module) for module in ("wiki", "mail", "chat"))


def results(report: Report) -> dict[str, str]:
    return {each.login: each.result for each in report.consumers} | {
        each.login: each.result for each in report.removed if each.what == "login"
    }


def reason(report: Report, login: str = "n1.wiki") -> str:
    return {each.login: each.why for each in report.removed}[login]


@pytest.fixture
def made(lab: Lab) -> Lab:
    """Three consumers that were served."""
    for module in ("wiki", "mail", "chat"):
        lab.secret("n1", module, f"pw-{module}")
    lab.write(WIKI, MAIL, CHAT)
    assert lab.run().exit_code == 0
    return lab


# --- the input is refused: nothing is changed --------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [None, b"", b"{}", b'{"consumer": []}', b'{"version": 2, "consumers": []}', b'{"provision": "x", "consumers": []}'],
)
def test_a_manifest_that_can_not_be_used_costs_no_statement(made: Lab, data: bytes | None) -> None:
    made.manifest_path.unlink()
    if data is not None:
        made.lay(made.manifest_path, data, 0o644)
    before = made.catalogue()
    report = made.run(on_revoke="drop")
    assert report.exit_code == 2
    assert report.refused.startswith(str(made.manifest_path))
    assert made.statements == []
    assert made.catalogue() == before


def test_a_login_that_lacks_what_it_needs_is_told_the_statement(made: Lab) -> None:
    made.do(f"ALTER ROLE {PROVISIONER} NOCREATEROLE")
    report = made.run()
    assert report.exit_code == 2
    assert f'ALTER ROLE "{PROVISIONER}" CREATEROLE CREATEDB' in report.refused
    made.do(f"ALTER ROLE {PROVISIONER} CREATEROLE NOINHERIT")
    report = made.run()
    if made.major < 16:
        assert report.exit_code == 2
        assert f'ALTER ROLE "{PROVISIONER}" INHERIT' in report.refused
    else:
        assert report.exit_code == 0, list(report.lines())


# --- the server ---------------------------------------------------------------------------------------------------


def test_a_server_that_can_not_be_reached(made: Lab) -> None:
    report = made.run(base=made.base | {"host": str(made.grants)})
    assert report.exit_code == 3
    assert "PostgreSQL can't be reached" in report.ended
    assert set(results(report).values()) == {"not_tried"}
    report = made.run(base=made.base | {"password": "wrong"})
    assert report.exit_code == 3
    assert "wrong" not in report.ended.replace("password authentication failed", "")
    made.do(f"ALTER ROLE {PROVISIONER} CONNECTION LIMIT 0")
    report = made.run()
    assert report.exit_code == 3
    assert "too many connections" in report.ended


def test_a_read_only_server(made: Lab) -> None:
    made.do(f"ALTER ROLE {PROVISIONER} SET default_transaction_read_only = on")
    report = made.run()
    assert report.exit_code == 3
    assert "read only" in report.ended
    assert set(results(report).values()) == {"not_tried"}


def test_a_server_that_restarts_in_the_middle(made: Lab) -> None:
    made.write(WIKI, MAIL)
    seen = [0]

    def restart(statement: str) -> None:
        seen[0] += statement.startswith("ALTER ROLE")
        if seen[0] == 2:
            seen[0] += 1
            made.server.stop()
            made.server.start()

    report = made.run(on_statement=restart)
    assert report.exit_code == 3
    assert "is lost" in report.ended
    assert results(report) == {"n1.mail": "set", "n1.wiki": "not_tried", "n1.chat": "not_tried"}
    assert results(made.run()) == {"n1.mail": "set", "n1.wiki": "set", "n1.chat": "removed"}


def test_no_second_connection_fails_only_whoever_needs_it(made: Lab) -> None:
    made.secret("n2", "read", "r")
    made.write(WIKI, MAIL, CHAT, consumer("n2", "read", name="n1.wiki", access="readonly"))
    made.do(f"ALTER ROLE {PROVISIONER} CONNECTION LIMIT 1")
    report = made.run()
    assert results(report) == {"n1.chat": "set", "n1.mail": "set", "n1.wiki": "set", "n2.read": "failed"}
    made.do(f"ALTER ROLE {PROVISIONER} CONNECTION LIMIT -1")
    assert made.run(verify=True).exit_code == 0


# --- two at once --------------------------------------------------------------------------------------------------


def test_two_runs_at_once(made: Lab) -> None:
    locked, go_on = threading.Event(), threading.Event()
    first: list[Report] = []

    def wait(statement: str) -> None:
        if statement.startswith("ALTER ROLE"):
            locked.set()
            assert go_on.wait(60)

    def run() -> None:
        first.append(other.run(on_statement=wait))

    other = Lab(made.server, made.grants)
    running = threading.Thread(target=run)
    running.start()
    try:
        assert locked.wait(60)
        report = made.run()
        assert report.exit_code == 3
        assert "another run is under way: provisioner (postgres-provisioner, process" in report.ended
        assert made.run(dry_run=True).exit_code == 0
    finally:
        go_on.set()
        running.join(60)
    assert first[0].exit_code == 0
    assert made.run().exit_code == 0


def test_a_consumer_that_takes_our_lock_does_not_stop_its_revocation(made: Lab) -> None:
    key = _key(made)
    made.write(MAIL, CHAT)
    with made.login("n1.wiki", "pw-wiki", "postgres") as holder:
        holder.execute(f"SELECT pg_advisory_lock({key})".encode())
        report = made.run()
        assert report.exit_code == 0, list(report.lines())
        with pytest.raises(psycopg.OperationalError):
            holder.execute("SELECT 1")
    assert results(report)["n1.wiki"] == "removed"


def test_a_stranger_that_holds_our_lock_is_named(made: Lab) -> None:
    made.do("CREATE ROLE stranger LOGIN PASSWORD 'x'")
    key = _key(made)
    with made.login("stranger", "x", "postgres") as holder:
        holder.execute(f"SELECT pg_advisory_lock({key})".encode())
        report = made.run()
    assert report.exit_code == 3
    assert "another run is under way: stranger" in report.ended


def _key(lab: Lab) -> int:
    """The key of the lock, as seen from outside while a run holds it."""
    seen: list[Any] = []

    def look(statement: str) -> None:
        if statement.startswith("ALTER ROLE") and not seen:
            seen.extend(
                lab.do("SELECT (classid::bigint << 32) | objid::bigint FROM pg_locks WHERE locktype = 'advisory'")
            )

    Lab(lab.server, lab.grants).run(on_statement=look)
    return int(seen[0][0])


# --- consumers that resist ---------------------------------------------------------------------------------------


def test_a_prepared_transaction_that_holds_up_nologin(made: Lab) -> None:
    with made.login("n1.wiki", "pw-wiki") as session:
        session.execute("BEGIN")
        session.execute("ALTER ROLE \"n1.wiki\" PASSWORD 'mine'")
        session.execute("PREPARE TRANSACTION 'held'")
    made.write(MAIL, CHAT)
    report = made.run()
    assert report.exit_code == 0, list(report.lines())
    assert results(report)["n1.wiki"] == "removed"
    assert made.do("SELECT count(*) FROM pg_prepared_xacts") == [(0,)]


HOSTILE = [
    *(
        "search_path = evil, pg_catalog",
        'role = "n1.wiki"',
        "default_transaction_read_only = on",
        "statement_timeout = 1",
    ),
    *("lock_timeout = 1", "idle_session_timeout = 1", "client_min_messages = error", "client_encoding = latin1"),
    *("standard_conforming_strings = off", "local_preload_libraries = 'nothere'"),
]


@pytest.mark.parametrize("on_revoke", ["retain", "drop"])
def test_an_owner_that_sets_traps_in_its_database(made: Lab, on_revoke: str) -> None:
    made.secret("n2", "read", "r")
    with made.login("n1.wiki", "pw-wiki") as session:
        session.execute("CREATE TABLE page (n int)")
        session.execute("CREATE SCHEMA evil")
        session.execute(
            """CREATE FUNCTION evil.has_table_privilege(name, oid, text) RETURNS bool LANGUAGE plpgsql AS
               $$ BEGIN EXECUTE 'CREATE ROLE caught'; RETURN true; END $$"""
        )
        for setting in HOSTILE:
            session.execute(f'ALTER DATABASE "n1.wiki" SET {setting}'.encode())
    made.write(WIKI, MAIL, CHAT, consumer("n2", "read", name="n1.wiki", access="readonly"))
    report = made.run()
    assert report.exit_code == 0, list(report.lines())
    assert "caught" not in made.roles()
    with made.operator() as operator:
        operator.execute('ALTER DATABASE "n1.wiki" ALLOW_CONNECTIONS false')
        operator.execute('ALTER DATABASE "n1.wiki" IS_TEMPLATE true')
    made.write(MAIL, CHAT)
    report = made.run(on_revoke=on_revoke)
    assert report.exit_code == 0, list(report.lines())
    assert "caught" not in made.roles()
    assert results(report)["n1.wiki"] == "removed"
    assert ("n1.wiki" in made.databases()) == (on_revoke == "retain")


def test_a_superuser_s_grant_that_we_can_not_take_back(made: Lab) -> None:
    made.do("CREATE TABLE public.theirs (n int)")
    try:
        made.do('GRANT SELECT ON public.theirs TO "n1.wiki"')
        made.write(MAIL, CHAT)
        for _ in range(2):
            report = made.run(on_revoke="drop")
            assert report.exit_code == 1
            assert results(report)["n1.wiki"] == "disabled"
            assert reason(report)
            assert not made.works("n1.wiki", "pw-wiki", "postgres")
        made.do('REVOKE SELECT ON public.theirs FROM "n1.wiki"')
        assert results(made.run(on_revoke="drop"))["n1.wiki"] == "removed"
    finally:
        made.do("DROP TABLE public.theirs")


def test_a_stranger_connected_to_a_database_that_is_to_go(made: Lab) -> None:
    made.write(MAIL, CHAT)
    with made.operator("n1.wiki") as there:
        report = made.run(on_revoke="drop")
        assert results(report)["n1.wiki"] == "disabled"
        assert "connected to it: operator" in reason(report)
        assert there.execute("SELECT 1").fetchone() == (1,)
        assert not made.works("n1.wiki", "pw-wiki")
    while made.do("SELECT 1 FROM pg_stat_activity WHERE datname = 'n1.wiki'"):
        pass  # its server process takes a moment to go
    assert results(made.run(on_revoke="drop"))["n1.wiki"] == "removed"
    assert made.databases() == {"n1.mail", "n1.chat"}


def test_a_stranger_that_acts_as_the_departed_login(made: Lab) -> None:
    """Its session can't be ended by us: so the role that it acts as loses all, and goes."""
    made.do("CREATE ROLE stranger LOGIN PASSWORD 'x'")
    made.do('GRANT "n1.wiki" TO stranger')
    with made.login("n1.wiki", "pw-wiki") as session:
        session.execute("CREATE TABLE page AS SELECT 7 AS n")
    made.write(MAIL, CHAT)
    with made.login("stranger", "x", "n1.wiki") as session:
        session.execute('SET ROLE "n1.wiki"')
        assert session.execute("SELECT n FROM page").fetchone() == (7,)
        report = made.run()
        assert results(report)["n1.wiki"] == "removed", list(report.lines())
        with pytest.raises(psycopg.Error):
            session.execute("SELECT n FROM page")
    assert made.do("SELECT n FROM page", "n1.wiki") == [(7,)]
    assert made.roles() == {"n1.mail", "n1.chat", "n1.wiki~kept", "stranger"}
    made.write(WIKI, MAIL, CHAT)
    assert made.run().exit_code == 0
    with made.login("n1.wiki", "pw-wiki") as session:
        assert session.execute("SELECT n FROM page").fetchone() == (7,)


def test_two_are_kept_and_one_comes_back(made: Lab) -> None:
    for module in ("wiki", "mail"):
        with made.login(f"n1.{module}", f"pw-{module}") as session:
            session.execute("CREATE TABLE page AS SELECT 7 AS n")
    made.write(CHAT)
    report = made.run()
    assert results(report) == {"n1.chat": "set", "n1.mail": "removed", "n1.wiki": "removed"}
    assert [each.role for each in made.run().retained] == ["n1.mail~kept", "n1.wiki~kept"]
    made.write(CHAT, MAIL)
    assert made.run().exit_code == 0
    owners = dict(made.do("SELECT datname, pg_get_userbyid(datdba) FROM pg_database"))
    assert owners["n1.mail"] == "n1.mail"
    assert owners["n1.wiki"] == "n1.wiki~kept"
    assert made.do("SELECT n FROM page", "n1.wiki") == [(7,)]


def test_a_role_that_is_out_of_our_hands(made: Lab) -> None:
    """What an upgrade from 15 does to roles of a provisioner that held them without ADMIN OPTION."""
    if made.major < 16:
        pytest.skip("before 16 CREATEROLE is enough")
    made.do(f'REVOKE "n1.wiki" FROM {PROVISIONER} CASCADE')
    report = made.run()
    failed = {each.login: each.why for each in report.consumers if each.result == "failed"}
    assert failed.keys() == {"n1.wiki"}
    made.write(MAIL, CHAT)
    report = made.run()
    assert results(report)["n1.wiki"] == "failed"
    made.do(f'GRANT "n1.wiki" TO "{PROVISIONER}" WITH ADMIN OPTION')
    assert results(made.run())["n1.wiki"] == "removed"


# --- secrets stay secret -----------------------------------------------------------------------------------------


def test_no_password_is_in_any_log(made: Lab) -> None:
    secrets = {
        "n1.wiki": "Sw0rdf1sh-wiki",
        "n1.mail": "Sw0rdf1sh-mail",
        "n1.chat": "Sw0rdf1sh-chat",
        "n5.new": "Sw0rdf1sh-new",
    }
    for login, password in secrets.items():
        node, module = login.split(".")
        made.secret(node, module, password)
    made.write(WIKI, MAIL, CHAT, consumer("n5", "new"))
    # refused by the server, with the statement in its log: a role made behind our back, after we looked
    raced = [False]

    def race(statement: str) -> None:
        if statement == "BEGIN" and not raced[0]:
            raced[0] = True
            made.do('CREATE ROLE "n5.new"')

    report = made.run(on_statement=race, verify=True)
    assert results(report) == {"n1.wiki": "set", "n1.mail": "set", "n1.chat": "set", "n5.new": "failed"}
    told = "\n".join(report.lines()) + str(report.document()) + str(report) + "".join(made.statements)
    done = made.command("--debug", "--verify", "--json")
    assert done.returncode == 1
    server = made.server.log.read_text(errors="replace")
    assert 'role "n5.new" already exists' in server
    assert "SCRAM-SHA-256$4096:" in server
    for text in (told, done.stdout, done.stderr, server):
        assert "Sw0rdf1sh" not in text
        assert PASSWORD not in text
    for text in (told, done.stdout, done.stderr):
        assert "SCRAM-SHA-256$" not in text
    assert re.search(r"SQL: ALTER ROLE .* PASSWORD '\*\*\*\*'", done.stderr)


def test_a_run_starts_no_other_process(made: Lab) -> None:
    """A password can't be in an argument or an environment of what isn't started."""
    started: list[str] = []
    listening = [True]

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if listening[0] and event in {"subprocess.Popen", "os.exec", "os.posix_spawn", "os.fork", "os.system"}:
            started.append(event)

    sys.addaudithook(hook)  # it stays for the life of the process, deaf
    try:
        assert made.run(verify=True).exit_code == 0
        made.write()
        assert made.run(verify=True, on_revoke="drop").exit_code == 0
    finally:
        listening[0] = False
    assert started == []


# --- killed at any statement -------------------------------------------------------------------------------------


class _Killed(BaseException):
    """The end of the process, as the server sees it: the connection is gone, nothing is said."""


def scenario(lab: Lab) -> None:
    """One run that creates, rotates, lets read, keeps and removes; on a server that was served before."""
    for module in ("wiki", "mail", "chat", "news"):
        lab.secret("n1", module, f"pw-{module}")
    lab.secret("n2", "read", "r")
    lab.write(WIKI, MAIL, CHAT, consumer("n2", "read", name="n1.mail", access="readonly"))
    assert lab.run().exit_code == 0
    lab.write(WIKI, MAIL)
    assert lab.run().exit_code == 0
    lab.do('GRANT "n1.mail" TO "n1.wiki"')
    lab.write(WIKI, CHAT, consumer("n1", "news"), consumer("n2", "read", name="n1.chat", access="readwrite"))
    lab.secret("n1", "wiki", "rotated")


KILLER = """
import json, os, signal, sys
from pathlib import Path
from provisioner.grants import plan, reconcile
from provisioner.grants.postgres import Link
manifest, grants, at, on_revoke = sys.argv[1:]
count = 0
def die(statement):
    global count
    count += 1
    if count == int(at):
        os.kill(os.getpid(), signal.SIGKILL)
job = reconcile.Job(Path(manifest), Path(grants), "database", plan.Policy(on_revoke, quiet_seconds=0.01))
reconcile.reconcile(job, Link({}, on_statement=die))
"""


def _undisturbed(lab: Lab, on_revoke: str) -> tuple[dict[str, Any], int]:
    scenario(lab)
    report = lab.run(on_revoke=on_revoke)
    assert report.exit_code == 0, list(report.lines())
    found = lab.catalogue(), len(lab.statements)
    lab.clean()
    return found


@pytest.mark.parametrize("on_revoke", ["retain", "drop"])
def test_cut_off_at_some_statements_and_run_again(lab: Lab, on_revoke: str) -> None:
    _cut(lab, on_revoke, step=31)


def _cut(lab: Lab, on_revoke: str, *, step: int) -> None:

    wanted, count = _undisturbed(lab, on_revoke)
    for at in range(1, count + 1, step):
        postgres_lab.prepare(lab.server)
        scenario(lab)
        seen = [0]

        def cut(statement: str, seen: list[int] = seen, at: int = at) -> None:
            seen[0] += 1
            if seen[0] == at:
                raise _Killed

        with pytest.raises(_Killed):
            lab.run(on_revoke=on_revoke, on_statement=cut)
        report = lab.run(on_revoke=on_revoke)
        assert report.exit_code == 0, (at, list(report.lines()))
        assert lab.catalogue() == wanted, at
        assert lab.works("n1.wiki", "rotated")
        lab.clean()
    postgres_lab.prepare(lab.server)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("on_revoke", ["retain", "drop"])
def test_killed_at_each_statement_and_run_again(lab: Lab, on_revoke: str) -> None:
    """The same with a real process and SIGKILL, at every single statement."""
    if (lab.major, on_revoke) in {(16, "retain"), (16, "drop"), (18, "drop")}:
        pytest.skip("a minute each; the older and the newest major tell it")

    wanted, count = _undisturbed(lab, on_revoke)
    for at in range(1, count + 1):
        postgres_lab.prepare(lab.server)
        scenario(lab)
        argv = [sys.executable, "-c", KILLER, str(lab.manifest_path), str(lab.grants), str(at), on_revoke]
        killed = subprocess.run(argv, check=False, env=lab.environment(), capture_output=True)
        assert killed.returncode == -9, killed.stderr
        # Its connection is the kernel's to close, and the lock goes with it.
        report = lab.run(on_revoke=on_revoke)
        while report.exit_code == 3:
            report = lab.run(on_revoke=on_revoke)
        assert report.exit_code == 0, (at, list(report.lines()))
        assert lab.catalogue() == wanted, at
        lab.clean()
    postgres_lab.prepare(lab.server)


@pytest.mark.slow
@pytest.mark.parametrize("major", [15, 18])
def test_a_standby_and_a_full_server(major: int, tmp_path: Path) -> None:
    if postgres_lab.binaries(major) is None:
        pytest.skip(f"PostgreSQL {major} is not on this machine")
    grants = tmp_path / "grants"
    grants.mkdir(mode=0o755)
    with postgres_lab.raised(major) as server:
        postgres_lab.prepare(server)
        lab = Lab(server, grants)
        lab.secret("n1", "wiki", "w")
        lab.write(WIKI)
        assert lab.run().exit_code == 0

        server.stop()
        server.start("max_connections=5", "max_wal_senders=0", "superuser_reserved_connections=2")
        held = [lab.login("n1.wiki", "w") for _ in range(3)]
        report = lab.run()
        assert report.exit_code == 3
        assert "can't be reached" in report.ended
        for each in held:
            each.close()
        assert lab.run().exit_code == 0

        server.stop()
        signal_file = server.directory / "data" / "standby.signal"
        signal_file.touch()
        signal_file.chmod(0o644)
        server.start()
        report = lab.run()
        assert report.exit_code == 3
        assert "is a standby" in report.ended


def test_runs_while_everything_is_swapped(made: Lab) -> None:
    """Manifest and secrets are swapped together every 10 ms: nobody is lost, no password of another is set."""
    generations = ("one", "two")
    for generation in generations:
        folder = made.grants / f"..{generation}"
        folder.mkdir(mode=0o755)
        there = Lab(made.server, folder)
        there.write(WIKI, MAIL)
        for module in ("wiki", "mail"):
            there.secret("n1", module, f"{module}-{generation}")
    for name in ("mesh.json", "n1.wiki.secret", "n1.mail.secret"):
        (made.grants / name).unlink()
        (made.grants / name).symlink_to(f"..data/{name}")
    (made.grants / "..data").symlink_to("..one")
    ended = threading.Event()

    def swap() -> None:
        while not ended.is_set():
            for generation in generations:
                (made.grants / "..fresh").symlink_to(f"..{generation}")
                (made.grants / "..fresh").replace(made.grants / "..data")
                ended.wait(0.01)

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        codes = [made.run().exit_code for _ in range(25)]
    finally:
        ended.set()
        swapping.join()
    assert set(codes) <= {0, 2}  # 2: it changed at each try, and nothing was done
    report = made.run(verify=True)
    assert report.exit_code == 0, list(report.lines())
    assert made.roles() == {"n1.wiki", "n1.mail", "n1.chat~kept"}


def test_a_server_that_goes_while_logins_are_removed(made: Lab) -> None:
    """What has been done is told as done."""
    made.write(CHAT)

    def stop(statement: str) -> None:
        if statement.startswith('ALTER ROLE "n1.wiki" RENAME'):
            made.server.stop()

    try:
        report = made.run(on_statement=stop)
    finally:
        made.server.start()
    assert report.exit_code == 3
    assert results(report) == {"n1.chat": "set", "n1.mail": "removed", "n1.wiki": "not_tried"}
    assert not made.works("n1.wiki", "pw-wiki")
    assert results(made.run()) == {"n1.chat": "set", "n1.wiki": "removed"}


def test_an_operator_can_keep_verifiers_out_of_the_log(made: Lab) -> None:
    for setting in ("log_statement = 'none'", "log_min_error_statement = panic", "log_min_duration_statement = -1"):
        made.do(f"ALTER ROLE {PROVISIONER} SET {setting}")
    before = len(made.server.log.read_bytes())
    made.secret("n5", "new", "x")
    made.write(WIKI, consumer("n5", "new"))

    def race(statement: str) -> None:
        if statement == "BEGIN" and "n5.new" not in made.roles():
            made.do('CREATE ROLE "n5.new"')

    assert results(made.run(on_statement=race))["n5.new"] == "failed"
    logged = made.server.log.read_bytes()[before:]
    assert b'role "n5.new" already exists' in logged
    assert b"SCRAM-SHA-256$" not in logged
