"""The one way to the server: what a connection begins with, what is refused, what is tried again, how it is stopped."""

import contextlib
import threading

import psycopg
import pytest

from provisioner.errors import RunEnded, StatementRefused
from provisioner.grants.handover import enter
from provisioner.grants.postgres import Link
from tests.integration.postgres_lab import PASSWORD, PROVISIONER, Lab, consumer


@pytest.fixture
def link(lab: Lab) -> Link:
    """To a server where n1.wiki has a database."""
    lab.secret("n1", "wiki", "w")
    lab.write(consumer("n1", "wiki"))
    assert lab.run().exit_code == 0
    return Link(lab.base)


SET_BY_THE_OWNER = {
    "role": '"n1.wiki"',
    "search_path": "public",
    "default_transaction_read_only": "on",
    "statement_timeout": "'1s'",
    "lock_timeout": "'1s'",
    "idle_session_timeout": "'1s'",
    "idle_in_transaction_session_timeout": "'1s'",
    "client_min_messages": "error",
    "standard_conforming_strings": "off",
    "client_encoding": "latin1",
    "local_preload_libraries": "'nothere'",
}
BEGUN_WITH = {
    "role": "none",
    "search_path": "pg_catalog",
    "default_transaction_read_only": "off",
    "statement_timeout": "15min",
    "lock_timeout": "3s",
    "idle_session_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "client_min_messages": "notice",
    "standard_conforming_strings": "on",
    "client_encoding": "UTF8",
    "local_preload_libraries": "",
}


def test_nothing_that_an_owner_sets_reaches_our_connection(lab: Lab, link: Link) -> None:
    settings = dict(SET_BY_THE_OWNER)
    wanted = dict(BEGUN_WITH)
    if lab.major >= 17:
        settings["transaction_timeout"] = "'1s'"
        wanted["transaction_timeout"] = "0"
    with lab.login("n1.wiki", "w") as session:
        for name, value in settings.items():
            session.execute(f'ALTER DATABASE "n1.wiki" SET {name} = {value}'.encode())
    with link.connect(), link.connect("n1.wiki") as session:
        found = {name: session.one("SELECT current_setting(%s)", (name,)) for name in wanted}
        assert found == {name: (value,) for name, value in wanted.items()}
        assert session.one("SELECT current_user::text") == (PROVISIONER,)


def test_a_statement_that_only_warns_is_refused(lab: Lab, link: Link) -> None:
    lab.do("CREATE DATABASE theirs")
    with link.connect() as session:
        with pytest.raises(StatementRefused) as refused:
            session.execute("REVOKE CONNECT ON DATABASE theirs FROM PUBLIC")
        assert refused.value.sqlstate == "01006"
        with pytest.raises(StatementRefused) as refused:
            session.execute("GRANT CONNECT ON DATABASE theirs TO PUBLIC")
        assert refused.value.sqlstate == "01007"
        session.execute("SELECT 1")


def test_a_refusal_is_told_without_its_statement(link: Link) -> None:
    with link.connect() as session, pytest.raises(StatementRefused) as refused:
        session.execute("ALTER ROLE nobody PASSWORD 'SCRAM-SHA-256$4096:secret'")
    assert str(refused.value) == 'role "nobody" does not exist'
    assert refused.value.__cause__ is None


def test_an_owner_that_shut_us_out_is_overcome_from_outside(lab: Lab, link: Link) -> None:
    with lab.login("n1.wiki", "w") as owner:
        owner.execute('ALTER DATABASE "n1.wiki" SET work_mem = 1000')
        owner.execute('REVOKE CONNECT ON DATABASE "n1.wiki" FROM "n1.wiki"')
    with lab.login("n1.wiki", "w", "postgres") as owner:
        owner.execute('ALTER DATABASE "n1.wiki" ALLOW_CONNECTIONS false')
    with link.connect() as session, enter(link, session, "n1.wiki") as inside:
        # no more of the owner's settings was undone than it took
        assert inside.one("SELECT current_setting('work_mem')") == ("1000kB",)


def test_a_database_of_others_is_not_opened(lab: Lab, link: Link) -> None:
    lab.do("CREATE DATABASE theirs ALLOW_CONNECTIONS false")
    with link.connect() as session, pytest.raises(StatementRefused, match="can't connect to the database theirs"):
        enter(link, session, "theirs", ours=False)


def test_what_passes_is_tried_again_and_what_does_not_is_not(link: Link) -> None:
    tries: list[str] = []

    def act(code: str, succeed_at: int) -> str:
        tries.append(code)
        if len(tries) < succeed_at:
            raise StatementRefused("no", code)
        return "done"

    assert link.patiently(lambda: act("XX000", 4)) == "done"
    assert len(tries) == 4
    tries.clear()
    with pytest.raises(StatementRefused):
        link.patiently(lambda: act("42501", 2))
    assert len(tries) == 1


def test_many_writers_of_one_role_all_come_through(lab: Lab, link: Link) -> None:
    """ "tuple concurrently updated": a consumer that changes its own password all the time."""
    ended = threading.Event()

    def change() -> None:
        with lab.login("n1.wiki", "w") as session:
            while not ended.is_set():
                with contextlib.suppress(psycopg.errors.InternalError_):
                    session.execute("ALTER ROLE \"n1.wiki\" PASSWORD 'w'")

    changing = threading.Thread(target=change)
    changing.start()
    try:
        assert all(lab.run().exit_code == 0 for _ in range(5))
    finally:
        ended.set()
        changing.join()


def test_told_to_stop_it_cancels_what_it_waits_for(link: Link) -> None:
    with link.connect() as session:
        threading.Timer(0.2, link.stop).start()
        with pytest.raises(RunEnded, match="told to stop"):
            session.execute("SELECT pg_sleep(30)")
        with pytest.raises(RunEnded, match="told to stop"):
            session.execute("SELECT 1")
    with pytest.raises(RunEnded, match="told to stop"):
        link.connect()


def test_a_lost_connection_ends_the_run(lab: Lab, link: Link) -> None:
    with link.connect() as session:
        lab.do(f"SELECT pg_terminate_backend({session.connection.info.backend_pid}, 5000)")
        with pytest.raises(RunEnded, match="the connection to PostgreSQL is lost"):
            session.execute("SELECT 1")


def test_options_of_the_operator_are_kept(lab: Lab) -> None:
    link = Link(lab.base | {"options": "-c work_mem=1000kB -c search_path=public"})
    with link.connect() as session:
        assert session.one("SELECT current_setting('work_mem'), current_setting('search_path')") == (
            "1000kB",
            "pg_catalog",
        )
    assert PASSWORD not in repr(link)
