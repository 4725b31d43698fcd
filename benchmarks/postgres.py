"""How a run of postgres-provisioner grows with the number of consumers: seconds, statements, statements a consumer.

    .venv/bin/python benchmarks/postgres.py [--consumers 1000,2000,5000] [--binaries DIR]

Each size is measured on a server raised for it: the first run, which makes everything, and one that changes nothing.
The seed demands one statement for each consumer on each run: its password. The verifier is computed here, 4096 rounds
of SHA-256 twice over; what that costs is measured apart, as most of a quiet run is that.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

from attrs import frozen

from provisioner.grants import cluster, reconcile, scram
from provisioner.grants.cluster import Cluster
from provisioner.grants.postgres import Link
from provisioner.grants.report import Report


@frozen
class Bench:
    server: Cluster
    grants: Path

    def lay(self, consumers: int) -> None:
        """One in fifty owns a database, the others read in one: a database costs the server far more than a login."""
        entries = []
        for number in range(consumers):
            node, module = f"n{number // 10}", f"m{number % 10}"
            secret = self.grants / f"{node}.{module}.secret"
            secret.write_text(f"password of {number}")
            secret.chmod(0o600)
            asks = {} if number % 50 == 0 else {"name": "n0.m0", "access": "readonly"}
            entries.append({"node": node, "module": module, "asks": asks})
        manifest = self.grants / "mesh.json"
        manifest.write_text(json.dumps({"consumers": entries}))
        manifest.chmod(0o644)

    def run(self, *, dry_run: bool = False) -> Report:
        base = self.server.dsn(user="provisioner") | {"password": "p"}
        job = reconcile.Job(self.grants / "mesh.json", self.grants, "database", dry_run=dry_run)

        def progress(done: int, every: int) -> None:
            print(f"  … {done} of {every}", flush=True)

        report = reconcile.reconcile(job, Link(base), progress=progress).report
        assert report.exit_code == 0, list(report.lines())[-3:]
        return report


def measure(consumers: int, binaries: Path | None, within: Path | None) -> None:
    settings = ["shared_buffers=128MB", "autovacuum=off", "max_wal_size=4GB"]
    with (
        cluster.running(binaries=binaries, settings=settings, within=within) as server,
        tempfile.TemporaryDirectory() as name,
    ):
        with server.superuser() as session:
            session.execute("CREATE ROLE provisioner LOGIN CREATEROLE CREATEDB PASSWORD 'p'")
        bench = Bench(server, Path(name))
        bench.lay(consumers)
        for what in ("first", "quiet", "dry"):
            report = bench.run(dry_run=what == "dry")
            print(
                f"{consumers:>6} {what:<6} {report.seconds:8.2f} s {report.seconds / consumers * 1000:8.3f} ms each"
                f" {report.statements:>7} statements {report.statements / consumers:6.3f} each",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--consumers", default="500,1000,2000,5000")
    parser.add_argument("--binaries", type=Path)
    parser.add_argument("--within", type=Path, help="where the server's files are made, such as /dev/shm")
    arguments = parser.parse_args()
    started = time.perf_counter()
    for number in range(200):
        scram.verifier(f"password of {number}")
    print(f"one verifier: {(time.perf_counter() - started) / 200 * 1000:.3f} ms")
    for consumers in map(int, arguments.consumers.split(",")):
        measure(consumers, arguments.binaries, arguments.within)


if __name__ == "__main__":
    main()
