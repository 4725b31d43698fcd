"""``postgres-provisioner`` as it is started: flags, exit codes, what is on which stream, watching, metrics, signals."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from provisioner.cli.postgres import PROGRAM
from tests.integration.postgres_lab import Lab, consumer

WIKI, MAIL = consumer("n1", "wiki"), consumer("n1", "mail")


@pytest.fixture
def delivered(lab: Lab) -> Lab:
    lab.secret("n1", "wiki", "pw-wiki")
    lab.secret("n1", "mail", "pw-mail")
    lab.write(WIKI, MAIL)
    return lab


def test_a_run_is_told_to_a_person(delivered: Lab) -> None:
    done = delivered.command()
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["created", "n1", "mail", "n1.mail"]
    assert lines[1].split() == ["created", "n1", "wiki", "n1.wiki"]
    assert lines[-1].startswith("database: 2 created (")
    assert done.stderr == ""


def test_a_run_is_told_to_a_machine(delivered: Lab) -> None:
    delivered.secret("n1", "mail", "")
    done = delivered.command("--json", "--verify", "--debug")
    assert done.returncode == 1
    told = json.loads(done.stdout)
    assert told["provision"] == "database"
    assert told["dry_run"] is False
    assert len(told["manifest_sha256"]) == 64
    assert told["consumers"] == [
        {"node": "n1", "module": "mail", "login": "n1.mail", "result": "failed", "why": "secret file is empty"},
        {"node": "n1", "module": "wiki", "login": "n1.wiki", "result": "created", "verified": "password accepted"},
    ]
    assert told["removed"] == told["retained"] == told["notes"] == []
    assert told["counts"] == {"created": 1, "set": 0, "failed": 1, "removed": 0}
    assert told["exit_code"] == 1
    assert "secret file is empty" in done.stderr

    delivered.write()
    told = json.loads(delivered.command("--json").stdout)
    assert told["removed"] == [
        {
            "login": "n1.wiki",
            "result": "removed",
            "what": "login",
            "sessions_ended": 0,
            "database": "retained",
            "databases": ["n1.wiki"],
        }
    ]
    assert told["notes"] == ["n1.mail.secret is named by no consumer", "n1.wiki.secret is named by no consumer"]


def test_the_word_run_may_be_said(delivered: Lab) -> None:
    argv = [sys.executable, "-m", "provisioner.cli.postgres", "run", "--dry-run"]
    argv += ["--manifest", str(delivered.manifest_path), "--grants", str(delivered.grants)]
    done = subprocess.run(argv, check=False, env=delivered.environment(), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "would be created" in done.stdout
    assert delivered.roles() == set()


def test_the_declaration_says_where_the_files_are(delivered: Lab) -> None:
    path = delivered.grants.parent / "module.json"
    path.write_text(
        json.dumps(
            {
                "provides": [{"name": "database", "scope": "mesh"}],
                "receives": {"database": str(delivered.manifest_path)},
                "grants": {"database": str(delivered.grants)},
            }
        )
    )
    path.chmod(0o644)
    argv = [sys.executable, "-m", "provisioner.cli.postgres", "--declaration", str(path), "--check"]
    done = subprocess.run(argv, check=False, env=delivered.environment(), capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert "would be created" in done.stdout


def test_a_dsn(delivered: Lab) -> None:
    dsn = f"host={delivered.server.directory} dbname=postgres user=provisioner"
    argv = ["--dsn", dsn]
    assert delivered.command(*argv, PGHOST="/nowhere", PGUSER="nobody").returncode == 0
    assert delivered.works("n1.wiki", "pw-wiki")


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (
            ["--dsn", "host=x password=Sw0rdf1sh"],
            "which everybody on this machine can see: put it into the password file",
        ),
        (["--dsn", "postgresql://u:Sw0rdf1sh@h/db"], "holds a password"),
        (["--dsn", "postgresql://h/db?password=Sw0rdf1sh"], "holds a password"),
        (["--dsn", "Sw0rdf1sh"], "is not a connection string"),
        (["--on-revoke", "forget"], "invalid choice"),
        (["--max-remove", "-1"], "invalid"),
        (["--dry-run", "--check"], "not allowed with"),
        (["--watch", "--check"], "doesn't go with"),
        (["--monitor-port", "0"], "is for --watch"),
        (["--interval", "0s"], "invalid"),
        (["--declaration", "/nowhere.json"], "/nowhere.json can't be read"),
        (["--provision", "archive"], "Nothing was changed"),
    ],
    ids=lambda value: " ".join(value)[:30] if isinstance(value, list) else "",
)
def test_flags_that_can_not_be_used(
    tmp_path: Path, flags: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = tmp_path / "mesh.json"
    manifest.write_text('{"consumers": [], "provision": "database"}')
    manifest.chmod(0o644)
    # There is no server: whatever is refused is refused before one is looked for.
    files = ["--manifest", str(manifest), "--grants", str(tmp_path)]
    assert PROGRAM.main([*files, *flags]) == 2
    out, err = capsys.readouterr()
    assert told in out + err
    assert "Traceback" not in err
    assert "Sw0rdf1sh" not in out + err


def test_without_files_it_says_what_it_needs() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "provisioner.cli.postgres"], check=False, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "--manifest and --grants" in done.stderr


def test_exit_codes(delivered: Lab) -> None:
    assert delivered.command(PGHOST="/nowhere").returncode == 3
    delivered.lay(delivered.manifest_path, b"{", 0o644)
    assert delivered.command().returncode == 2
    delivered.write(WIKI, consumer("n1", "mail", size=1))
    assert delivered.command().returncode == 1
    delivered.write(WIKI)
    assert delivered.command().returncode == 0


def test_metrics_in_a_textfile(delivered: Lab) -> None:
    delivered.secret("n1", "mail", "")
    path = delivered.grants.parent / "postgres.prom"
    delivered.command("--textfile", str(path))
    told = path.read_text().splitlines()
    assert path.stat().st_mode & 0o777 == 0o644
    for line in (
        'postgres_provisioner_consumers{provision="database",result="created"} 1.0',
        'postgres_provisioner_consumers{provision="database",result="failed"} 1.0',
        'postgres_provisioner_consumers{provision="database",result="not_tried"} 0.0',
        'postgres_provisioner_removals{provision="database",result="removed"} 0.0',
        'postgres_provisioner_runs{provision="database",exit_code="1"} 1.0',
        'postgres_provisioner_runs{provision="database",exit_code="0"} 0.0',
        'postgres_provisioner_removals_withheld{provision="database"} 0.0',
    ):
        assert line in told
    assert any(line.startswith("postgres_provisioner_last_run_timestamp_seconds{") for line in told)
    assert not any(line.startswith("postgres_provisioner_last_success") for line in told)
    delivered.command("--textfile", "/nowhere/postgres.prom")


class Watching:
    """A watching provisioner. It tells each run in one line of JSON."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def next(self) -> dict[str, Any]:
        """The next run's report."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.wait(10)
        told: dict[str, Any] = json.loads(line)
        return told

    def until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        while not wanted(told := self.next()):
            pass
        return told


@contextmanager
def watching(lab: Lab, *flags: str) -> Iterator[Watching]:
    argv = [sys.executable, "-m", "provisioner.cli.postgres", "--watch", "--json", *flags]
    argv += ["--manifest", str(lab.manifest_path), "--grants", str(lab.grants)]
    log = (lab.grants.parent / "watch.log").open("w")
    with log, subprocess.Popen(argv, env=lab.environment(), stdout=subprocess.PIPE, stderr=log, text=True) as process:
        try:
            yield Watching(process)
        finally:
            process.kill()


def test_watching_the_files(delivered: Lab) -> None:
    with watching(delivered, "--interval", "1h", "--verify") as watch:
        assert watch.next()["counts"]["created"] == 2
        delivered.secret("n1", "wiki", "rotated")  # only a secret
        assert watch.next()["counts"]["set"] == 2
        assert delivered.works("n1.wiki", "rotated")
        delivered.write(WIKI)  # only the manifest
        told = watch.until(lambda each: bool(each["removed"]))
        assert told["removed"][0]["verified"] == "login refused"
        assert not delivered.works("n1.mail", "pw-mail")
        # the whole directory, by another in its place
        fresh = delivered.grants.parent / "fresh"
        fresh.mkdir(mode=0o755)
        lab = Lab(delivered.server, fresh)
        lab.secret("n1", "wiki", "swapped")
        lab.write(WIKI)
        delivered.grants.rename(delivered.grants.parent / "old")
        fresh.rename(delivered.grants)
        watch.until(lambda each: each["exit_code"] == 0)
        assert delivered.works("n1.wiki", "swapped")
        # a manifest that is broken for a while changes nothing
        delivered.lay(delivered.manifest_path, b"", 0o644)
        assert watch.until(lambda each: each["exit_code"] != 0)["exit_code"] == 2
        assert delivered.works("n1.wiki", "swapped")
        watch.process.send_signal(signal.SIGTERM)
        assert watch.process.wait(30) == 0


def test_watching_at_an_interval_through_an_outage(delivered: Lab) -> None:
    with watching(delivered, "--interval", "1s") as watch:
        assert watch.next()["exit_code"] == 0
        delivered.do("ALTER ROLE \"n1.wiki\" PASSWORD 'by another hand'")
        watch.next()
        watch.next()
        assert delivered.works("n1.wiki", "pw-wiki")
        delivered.server.stop()
        assert watch.until(lambda each: each["exit_code"] != 0)["exit_code"] == 3
        delivered.server.start()
        assert watch.until(lambda each: each["exit_code"] == 0)["counts"]["set"] == 2
        watch.process.send_signal(signal.SIGTERM)
        assert watch.process.wait(30) == 0


async def test_the_page_of_a_watching_one(delivered: Lab) -> None:
    listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    port = listener.socket.getsockname()[1]
    await listener.aclose()
    with watching(delivered, "--monitor-port", str(port)) as watch:
        await trio.to_thread.run_sync(watch.next)

        async def get(path: str) -> str:
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            async with stream:
                await stream.send_all(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
                found = b"".join([part async for part in stream])
            return found.decode().partition("\r\n\r\n")[2]

        assert 'consumers{provision="database",result="created"} 2.0' in await get("/metrics")
        assert await get("/healthz") == "ok\n"


def test_told_to_stop_in_the_middle(delivered: Lab) -> None:
    """Another holds the row that it needs; SIGTERM ends its wait at once, and it says what is undone."""
    assert delivered.command().returncode == 0
    with delivered.operator() as operator:
        operator.execute("BEGIN")
        operator.execute('ALTER ROLE "n1.mail" CONNECTION LIMIT 5')
        argv = [sys.executable, "-m", "provisioner.cli.postgres", "--json"]
        argv += ["--manifest", str(delivered.manifest_path), "--grants", str(delivered.grants)]
        with subprocess.Popen(
            argv, env=delivered.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            while not delivered.do(
                "SELECT 1 FROM pg_stat_activity WHERE usename = 'provisioner' AND wait_event_type = 'Lock'"
            ):
                assert process.poll() is None
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=30)
        operator.execute("ROLLBACK")
    assert process.returncode == 1, err
    told = json.loads(out)
    assert told["ended"] == "told to stop"
    assert {each["result"] for each in told["consumers"]} == {"not_tried"}


def test_its_own_environment_holds_no_consumer_s_secret(delivered: Lab, tmp_path: Path) -> None:
    """Nor do its arguments: looked at from outside while it waits for a lock."""
    assert delivered.command().returncode == 0
    with delivered.operator() as operator:
        operator.execute("BEGIN")
        operator.execute('ALTER ROLE "n1.mail" CONNECTION LIMIT 5')
        argv = [sys.executable, "-m", "provisioner.cli.postgres"]
        argv += ["--manifest", str(delivered.manifest_path), "--grants", str(delivered.grants)]
        with subprocess.Popen(argv, env=delivered.environment(), stdout=subprocess.DEVNULL) as process:
            while not delivered.do(
                "SELECT 1 FROM pg_stat_activity WHERE usename = 'provisioner' AND wait_event_type = 'Lock'"
            ):
                assert process.poll() is None
            seen = b"".join(Path(f"/proc/{process.pid}/{each}").read_bytes() for each in ("cmdline", "environ"))
            shown = str(delivered.do("SELECT query FROM pg_stat_activity"))
            operator.execute("ROLLBACK")
    assert b"mesh.json" in seen
    assert b"pw-" not in seen
    assert "pw-mail" not in shown
