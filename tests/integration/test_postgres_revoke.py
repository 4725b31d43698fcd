"""A revocation bites: after the run nothing of a departed consumer can act, whatever it had open or had prepared."""

import contextlib
import threading
from collections.abc import Iterator

import psycopg
import pytest

from provisioner.grants import plan
from tests.integration.postgres_lab import PROVISIONER, Connection, Lab, consumer

pytestmark = pytest.mark.timeout(120)


def acts(session: Connection, statement: str = "SELECT count(*) FROM kept_rows") -> bool:
    """Whether a session can still do something as the departed login."""
    try:
        session.execute(statement.encode())
    except psycopg.Error:
        return False
    return True


@contextlib.contextmanager
def reconnecting(lab: Lab, user: str, password: str, dbname: str, *, first: str = "SELECT 1") -> Iterator[list[int]]:
    """A client that comes back as soon as it is thrown out, and then does something. Yields how often it got in."""
    ended = threading.Event()
    came = [0]
    settled = threading.Event()

    def loop() -> None:
        while not ended.is_set():
            try:
                with lab.login(user, password, dbname) as session:
                    came[0] += 1
                    settled.set()
                    session.execute(first.encode())
                    session.execute("SELECT pg_sleep(0.01)")
            except psycopg.Error:
                settled.set()

    threads = [threading.Thread(target=loop) for _ in range(2)]
    for each in threads:
        each.start()
    try:
        assert settled.wait(30)
        yield came
    finally:
        ended.set()
        for each in threads:
            each.join(30)


@pytest.fixture
def app(lab: Lab) -> Lab:
    """Three consumers; n1.app owns rows in all three databases and has given some of its rights away."""
    lab.quiet_seconds = plan.QUIET_SECONDS
    lab.secret("n1", "app", "pw-app")
    lab.secret("n2", "other", "pw-other")
    lab.secret("n3", "third", "pw-third")
    lab.write(consumer("n1", "app", name="app"), consumer("n2", "other"), consumer("n3", "third"))
    assert lab.run().exit_code == 0
    for database in ("n2.other", "n3.third"):
        lab.do(f'GRANT CONNECT ON DATABASE "{database}" TO "n1.app"')
        lab.do('GRANT CREATE ON SCHEMA public TO "n1.app"', database)
    for database in ("app", "n2.other", "n3.third"):
        with lab.login("n1.app", "pw-app", database) as session:
            session.execute("CREATE TABLE kept_rows AS SELECT 7 AS n")
            session.execute('ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO "n2.other"')
            session.execute('GRANT SELECT ON kept_rows TO "n3.third"')
    return lab


def leave(lab: Lab) -> None:
    """The host's next manifest: n1.app is in it no more."""
    lab.write(consumer("n2", "other"), consumer("n3", "third"))


@pytest.mark.parametrize("on_revoke", ["retain", "drop"])
def test_nothing_of_it_can_act_afterwards(app: Lab, on_revoke: str) -> None:
    app.do("CREATE ROLE team NOLOGIN")
    app.do('GRANT team TO "n1.app"')
    app.do('GRANT "n1.app" TO "n2.other"')

    idle = app.login("n1.app", "pw-app", "app")
    busy = app.login("n1.app", "pw-app", "app")
    busy.execute("BEGIN")
    busy.execute("INSERT INTO kept_rows VALUES (8)")
    busy.execute("ALTER ROLE \"n1.app\" PASSWORD 'my own'")  # holds up NOLOGIN
    elsewhere = app.login("n1.app", "pw-app", "postgres")
    elsewhere.execute("SET ROLE team")
    other = app.login("n2.other", "pw-other", "app") if app.works("n2.other", "pw-other", "app") else None
    if other is None:
        app.do('GRANT CONNECT ON DATABASE app TO "n2.other"')
        other = app.login("n2.other", "pw-other", "app")
    other.execute('SET ROLE "n1.app"')
    with app.login("n1.app", "pw-app", "n2.other") as session:
        session.execute("BEGIN")
        session.execute("INSERT INTO kept_rows VALUES (9)")
        session.execute("PREPARE TRANSACTION 'rows'")
    assert acts(idle)
    assert acts(busy)
    assert acts(other)

    leave(app)
    with reconnecting(app, "n1.app", "pw-app", "app") as came:
        report = app.run(on_revoke=on_revoke, verify=True)
    assert came[0] > 0

    assert report.exit_code == 0, list(report.lines())
    (removed,) = report.removed
    assert (removed.login, removed.result) == ("n1.app", "removed")
    assert removed.sessions_ended >= 4
    for session in (idle, busy, elsewhere, other):
        assert not acts(session)
        assert not acts(session, "SELECT 1")
    assert not app.works("n1.app", "pw-app", "app")
    assert not app.works("n1.app", "my own", "app")
    assert app.do("SELECT count(*) FROM pg_prepared_xacts") == [(0,)]
    assert app.do("SELECT count(*) FROM pg_stat_activity WHERE usename LIKE 'n1.app%'") == [(0,)]
    assert "n1.app" not in app.roles()
    # The other consumers are as before, and can't act as it any more.
    assert app.works("n2.other", "pw-other")
    with app.login("n2.other", "pw-other") as session, pytest.raises(psycopg.Error):
        session.execute('SET ROLE "n1.app"')
    with app.login("n2.other", "pw-other") as session, pytest.raises(psycopg.Error):
        session.execute('SET ROLE "n1.app~kept"')
    if on_revoke == "retain":
        for database in ("app", "n2.other", "n3.third"):
            assert app.do("SELECT n FROM kept_rows", database) == [(7,)]
        assert app.do("SELECT rolcanlogin FROM pg_roles WHERE rolname = 'n1.app~kept'") == [(False,)]
    else:
        assert app.databases() == {"n2.other", "n3.third"}
        assert app.do("SELECT tableowner FROM pg_tables WHERE tablename = 'kept_rows'", "n3.third") == [("n3.third",)]
        assert app.roles() == {"n2.other", "n3.third", "team"}


def test_it_comes_back_to_its_data(app: Lab) -> None:
    leave(app)
    assert app.run().exit_code == 0
    app.secret("n1", "app", "pw-new")
    app.write(consumer("n1", "app", name="app"), consumer("n2", "other"), consumer("n3", "third"))
    report = app.run(verify=True)
    assert report.exit_code == 0, list(report.lines())
    with app.login("n1.app", "pw-new", "app") as session:
        assert session.execute("SELECT n FROM kept_rows").fetchall() == [(7,)]
        session.execute("DROP TABLE kept_rows")
    assert "n1.app~kept" not in app.roles()


def test_who_may_have_switched_is_remembered_over_a_killed_run(app: Lab) -> None:
    """Killed between taking a membership away and ending the sessions that had it: the next run ends them."""
    app.do('GRANT "n1.app" TO "n2.other"')
    app.do('GRANT CONNECT ON DATABASE app TO "n2.other"')
    other = app.login("n2.other", "pw-other", "app")
    other.execute('SET ROLE "n1.app"')
    leave(app)
    seen: list[str] = []

    def kill(statement: str) -> None:
        seen.append(statement)
        if any(each.startswith('REVOKE "n1.app"') for each in seen[:-2]) and seen[-2] == "COMMIT":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        app.run(on_statement=kill)
    assert acts(other)
    assert app.run().exit_code == 0
    assert not acts(other)
    assert not acts(other, "SELECT 1")
    other.close()


def test_a_kept_login_that_departs_again(app: Lab) -> None:
    for _ in range(2):
        leave(app)
        assert app.run().exit_code == 0
        assert [each.databases for each in app.run().retained] == [("app",)]
        app.write(consumer("n1", "app", name="app"), consumer("n2", "other"), consumer("n3", "third"))
        assert app.run(verify=True).exit_code == 0
        with app.login("n1.app", "pw-app", "app") as session:
            assert session.execute("SELECT n FROM kept_rows").fetchall() == [(7,)]


def test_what_was_kept_is_dropped_on_demand(app: Lab) -> None:
    leave(app)
    assert app.run().exit_code == 0
    report = app.run(on_revoke="drop")
    assert report.exit_code == 0, list(report.lines())
    assert [(each.login, each.what, each.result) for each in report.removed] == [("n1.app~kept", "kept", "removed")]
    assert app.roles() == app.databases() == {"n2.other", "n3.third"}


@pytest.mark.parametrize("on_revoke", ["retain", "drop"])
def test_nothing_that_it_made_becomes_the_provisioner_s(app: Lab, on_revoke: str) -> None:
    """A function that runs as its owner, left in a database of ours: it must never run as us."""
    app.do(f"CREATE DATABASE own OWNER {PROVISIONER}")
    app.do("GRANT ALL ON SCHEMA public TO PUBLIC", "own")
    app.do('GRANT "n1.app" TO "n2.other"')
    with app.login("n1.app", "pw-app", "own") as session:
        session.execute("CREATE FUNCTION trap() RETURNS void LANGUAGE sql SECURITY DEFINER AS 'SELECT 1'")
    leave(app)
    with app.login("n2.other", "pw-other", "own") as session:
        session.execute('SET ROLE "n1.app"')
        report = app.run(on_revoke=on_revoke)
    assert report.exit_code == 0, list(report.lines())
    owners = app.do("SELECT pg_get_userbyid(proowner) FROM pg_proc WHERE proname = 'trap'", "own")
    assert owners == ([] if on_revoke == "drop" else [("n1.app~kept",)])
