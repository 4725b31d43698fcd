"""A throw-away PostgreSQL on a Unix socket, raised from the installed binaries: for the demo, the tests, the benchmark.

PostgreSQL won't run as root, so root starts it as an ordinary user. It listens on no network address; its files are in
a temporary directory and go with it.
"""

import contextlib
import os
import pwd
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
from attrs import define, field

from provisioner.errors import GrantError
from provisioner.secret import Secret

SUPERUSER = "operator"
_DEBIAN = Path("/usr/lib/postgresql")
_START_SECONDS = 60.0
_STOP_SECONDS = 30.0
_USERS = ("postgres", "nobody")
_WITH_US = """
exec 3<&0
"$@" 3<&- </dev/null & server=$!
{ read -r _ <&3; kill -INT "$server" 2>/dev/null; } & watcher=$!
exec 3<&-
wait "$server"; code=$?
kill "$watcher" 2>/dev/null
exit "$code"
"""
"""Runs a server for as long as standard input is open: it ends with us, whatever ends us."""


def find_binaries() -> Path:
    """The directory with ``initdb`` and ``postgres``: of Debian's newest major, else where PATH has them.

    Raises:
        GrantError: there is no PostgreSQL server on this machine.
    """
    majors = [path for path in _DEBIAN.glob("*/bin") if (path / "initdb").exists()]
    if majors:
        return max(majors, key=lambda path: float(re.sub(r"[^0-9.]", "", path.parent.name) or 0))
    if (found := shutil.which("initdb")) is not None:
        return Path(found).resolve().parent
    raise GrantError("no PostgreSQL server on this machine: install it (Debian: apt-get install postgresql)")


def _account() -> tuple[int, int] | None:
    """The user and group that the server runs as, or None for ours."""
    if os.geteuid() != 0:
        return None
    for name in _USERS:
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return entry.pw_uid, entry.pw_gid
    return 65534, 65534


@define
class Cluster:
    """One database cluster. ``directory`` holds its socket, its log and its data."""

    binaries: Path
    directory: Path
    password: Secret
    settings: tuple[str, ...] = ()
    _account: tuple[int, int] | None = field(factory=_account)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        """The server's own log."""
        return self.directory / "server.log"

    def dsn(self, dbname: str = "postgres", user: str = SUPERUSER) -> dict[str, str]:
        """Connection parameters for one login, without a password."""
        return {"host": str(self.directory), "port": "5432", "dbname": dbname, "user": user}

    def superuser(self, dbname: str = "postgres") -> psycopg.Connection[tuple[object, ...]]:
        """A connection as the cluster's superuser; each statement is its own transaction."""
        return psycopg.connect(**self.dsn(dbname), password=self.password.reveal(), autocommit=True)  # type: ignore[arg-type]

    def _run(self, *argv: str) -> None:
        done = subprocess.run(
            argv, check=False, cwd=self.directory, env=self._environment(), capture_output=True, **self._as_user()
        )
        if done.returncode:
            raise GrantError(f"{Path(argv[0]).name} failed: {done.stderr.decode(errors='replace').strip()}")

    def _as_user(self) -> dict[str, Any]:
        if self._account is None:
            return {}
        user, group = self._account
        return {"user": user, "group": group, "extra_groups": []}

    def _environment(self) -> dict[str, str]:
        return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8", "TZ": "UTC"}

    def initialise(self) -> None:
        """Makes the data directory: SCRAM for every login, and one superuser."""
        if self._account is not None:
            os.chown(self.directory, *self._account)
            self.binaries = _reachable(self.binaries, self.directory, self._account)
        secret = self.directory / "superuser"
        secret.write_text(self.password.reveal())
        if self._account is not None:
            os.chown(secret, *self._account)
        self._run(
            *(str(self.binaries / "initdb"), "-D", str(self.directory / "data"), "-U", SUPERUSER, "-E", "UTF8"),
            *("--locale=C", "-A", "scram-sha-256", f"--pwfile={secret}", "--no-sync", "--no-instructions"),
        )
        secret.unlink()

    def start(self, *extra: str) -> None:
        """Starts the server and waits until it takes connections.

        Args:
            *extra: settings as ``name=value``, for this start.

        Raises:
            GrantError: it did not come up; the message has the end of its log.
        """
        settings = ("listen_addresses=", f"unix_socket_directories={self.directory}", "fsync=off", *self.settings)
        options = [part for setting in (*settings, *extra) for part in ("-c", setting)]
        data = self.directory / "data"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _WITH_US, "sh", str(self.binaries / "postgres"), "-D", str(data), *options],
                cwd=self.directory,
                env=self._environment(),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **self._as_user(),
            )
        give_up = time.monotonic() + _START_SECONDS
        while True:
            try:
                self.superuser().close()
            except psycopg.OperationalError as error:
                if self._process.poll() is not None or time.monotonic() > give_up:
                    self.stop()
                    tail = self.log.read_text(errors="replace")[-2000:]
                    raise GrantError(f"PostgreSQL did not start: {error}\n{tail}") from None
                time.sleep(0.05)
            else:
                return

    def stop(self) -> None:
        """Stops the server at once ("fast": open sessions are ended) and waits for its end."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _reachable(binaries: Path, directory: Path, account: tuple[int, int]) -> Path:
    """The binaries where that user can run them: a virtual environment in root's home is closed to it, so a copy."""
    probe = subprocess.run(
        ["/bin/sh", "-c", 'test -x "$0"', str(binaries / "postgres")],
        check=False,
        user=account[0],
        group=account[1],
        extra_groups=[],
    )
    if probe.returncode == 0:
        return binaries
    shutil.copytree(binaries.parent, directory / "installed", symlinks=True)
    return directory / "installed" / binaries.name


@contextlib.contextmanager
def running(
    *, binaries: Path | None = None, settings: Sequence[str] = (), within: Path | None = None
) -> Iterator[Cluster]:
    """A server for the time of a ``with`` block.

    Args:
        binaries: the directory with ``initdb`` and ``postgres``; found when not given.
        settings: server settings as ``name=value``.
        within: where its directory is made; the usual place for temporary files when not given.

    Yields:
        The running cluster.

    Raises:
        GrantError: no binaries, or the server did not start.
    """
    binaries = find_binaries() if binaries is None else binaries.absolute()
    with tempfile.TemporaryDirectory(prefix="pg-", dir=within, ignore_cleanup_errors=True) as name:
        directory = Path(name)
        directory.chmod(0o755)
        cluster = Cluster(binaries, directory, Secret(secrets.token_urlsafe(18)), tuple(settings))
        cluster.initialise()
        cluster.start()
        try:
            yield cluster
        finally:
            cluster.stop()
