"""``postgres-provisioner demo``: consumers come, rotate and go on a PostgreSQL raised for it, logins tried for real."""

import argparse
import contextlib
import json
import secrets
import sys
import tempfile
from pathlib import Path

import psycopg
from attrs import frozen

from provisioner.cli.logs import Logs
from provisioner.errors import EXIT_FINDING, EXIT_OK, EXIT_UNREACHABLE, GrantError
from provisioner.grants import cluster, naming, reconcile
from provisioner.grants.cluster import Cluster
from provisioner.grants.postgres import Link

_PROVISIONER = "provisioner"
_WIKI, _MAIL, _CHAT = ("n1", "wiki"), ("n1", "mail"), ("n2", "chat")


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    parser.add_argument("--binaries", type=Path, metavar="DIR", help="where initdb and postgres are (default: found)")


def main(arguments: argparse.Namespace) -> int:
    """Shows it; exit code 1 when anything is not as it should be."""
    with Logs("postgres-provisioner", "debug" if arguments.debug else "warn", "stderr"):
        try:
            with cluster.running(binaries=arguments.binaries) as server, tempfile.TemporaryDirectory() as name:
                return EXIT_OK if _Demo.on(server, Path(name)).show() else EXIT_FINDING
        except GrantError as error:
            print(f"postgres-provisioner: {error}", file=sys.stderr)
            return EXIT_UNREACHABLE


@frozen
class _Demo:
    server: Cluster
    grants: Path
    password: str
    passed: list[bool]

    @classmethod
    def on(cls, server: Cluster, grants: Path) -> "_Demo":
        password = secrets.token_urlsafe(18)
        with server.superuser() as session:
            session.execute(
                psycopg.sql.SQL("CREATE ROLE {} LOGIN CREATEROLE CREATEDB PASSWORD {}").format(
                    psycopg.sql.Identifier(_PROVISIONER), password
                )
            )
        return cls(server, grants, password, [])

    def show(self) -> bool:
        """All steps. False when one didn't end as it should."""
        old = {each: secrets.token_urlsafe(12) for each in (_WIKI, _MAIL, _CHAT)}
        self._title("Three consumers are delivered: a manifest, and a secret file for each")
        for each, password in old.items():
            self._lay(each, password)
        self._run(_WIKI, _MAIL, _CHAT)
        for each, password in old.items():
            self._expect(each, password, True, "its password")
        with self._session(_CHAT, old[_CHAT]) as session:
            session.execute("CREATE TABLE message AS SELECT 'kept' AS text")

        self._title("n1.wiki's secret is rotated: only its file changes")
        new = secrets.token_urlsafe(12)
        self._lay(_WIKI, new)
        self._run(_WIKI, _MAIL, _CHAT)
        self._expect(_WIKI, new, True, "the new password")
        self._expect(_WIKI, old[_WIKI], False, "the old password")

        self._title("n2.chat departs, with a session still open")
        with self._session(_CHAT, old[_CHAT]) as session:
            self._run(_WIKI, _MAIL)
            self._expect(_CHAT, old[_CHAT], False, "its password")
            self._tell(not _answers(session), "the open session of n2.chat is ended")

        self._title("n2.chat is back, and so is its data")
        self._lay(_CHAT, new)
        self._run(_WIKI, _MAIL, _CHAT)
        with self._session(_CHAT, new) as session:
            row = session.execute("SELECT text FROM message").fetchone()
        self._tell(row == ("kept",), "n2.chat reads what it wrote before")
        return all(self.passed)

    def _title(self, text: str) -> None:
        print(f"\n== {text}")

    def _tell(self, good: bool, text: str) -> None:
        self.passed.append(good)
        print(f"   {'ok  ' if good else 'FAIL'}  {text}", flush=True)

    def _lay(self, consumer: tuple[str, str], password: str) -> None:
        path = self.grants / naming.secret_file(*consumer)
        path.write_text(f"{password}\n")
        path.chmod(0o600)

    def _run(self, *consumers: tuple[str, str]) -> None:
        manifest = self.grants / "mesh.json"
        entries = [{"node": node, "module": module} for node, module in consumers]
        manifest.write_text(json.dumps({"version": 1, "consumers": entries}))
        manifest.chmod(0o644)
        base = self.server.dsn(user=_PROVISIONER) | {"password": self.password}
        report = reconcile.reconcile(reconcile.Job(manifest, self.grants, "database"), Link(base)).report
        for line in report.lines():
            print(f"   {line}")
        self._tell(report.exit_code == EXIT_OK, "the run ended well")

    def _session(self, consumer: tuple[str, str], password: str) -> psycopg.Connection[tuple[object, ...]]:
        login = naming.login_name(*consumer)
        return psycopg.connect(**self.server.dsn(login, login), password=password, autocommit=True)  # type: ignore[arg-type]

    def _expect(self, consumer: tuple[str, str], password: str, good: bool, what: str) -> None:
        try:
            self._session(consumer, password).close()
            entered = True
        except psycopg.OperationalError:
            entered = False
        login = naming.login_name(*consumer)
        self._tell(entered == good, f"{login} {'gets in' if good else 'is refused'} with {what}")


def _answers(session: psycopg.Connection[tuple[object, ...]]) -> bool:
    with contextlib.suppress(psycopg.Error):
        session.execute("SELECT 1")
        return True
    return False
