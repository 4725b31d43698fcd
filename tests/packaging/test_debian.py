"""The Debian package, built, installed on a machine of its own, its units started, removed again."""

import json
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from provisioner.bus.nats import Options, open_nats
from provisioner.grants import cluster
from provisioner.grants.cluster import Cluster
from provisioner.simulator.embedded import NatsServer
from provisioner.simulator.fleet import MadeFleet, make_servers, open_fleet
from provisioner.version import __version__
from tests.integration import postgres_lab
from tests.integration.daemon import CONFIGURATION, free_port
from tests.integration.mesh import PASSWORDS, get, mesh, ready
from tests.integration.postgres_lab import Lab, consumer
from tests.packaging.built import ROOT, run, tracked
from tests.packaging.machine import Machine, machine, why_not

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.skipif(bool(why_not()), reason=why_not())]

CHORIA = "choria-provisioner.service"
MESH = "mesh-provisioner.service"
UNITS = sorted(path.name for path in (ROOT / "contrib" / "systemd").iterdir() if path.suffix != ".conf")
ETC = Path("/etc/choria-provisioner")
DROP_INS = Path("/etc/systemd/system/choria-provisioner.service.d")
TOKEN = "s3cret"

HELPER = f"""#!/bin/sh
cat >/dev/null
grep NoNewPrivs /proc/self/status >"$STATE_DIRECTORY/seen"
id -un >>"$STATE_DIRECTORY/seen"
touch /etc/written 2>/dev/null && echo etc >>"$STATE_DIRECTORY/seen"
echo '{CONFIGURATION}'
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The .deb, built from the tree."""
    found = platform.freedesktop_os_release()
    if not (shutil.which("dpkg-buildpackage") and shutil.which("dh")) or "debian" not in {
        found.get("ID"),
        *found.get("ID_LIKE", "").split(),
    }:
        pytest.skip("no Debian with dpkg-dev and debhelper here")
    place = tmp_path_factory.mktemp("debian")
    tree = place / "tree"
    tree.mkdir()
    done = run("dpkg-buildpackage", "-b", "-us", "-uc", cwd=tracked(tree), path=Path("/usr/sbin"))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (found_package,) = place.glob("*.deb")
    return found_package


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that is the same on the machine."""
    place = tmp_path_factory.mktemp("shared")
    # Other users of the machine have to get there: a PostgreSQL server, a unit's own user.
    for folder in [each for each in (place, *place.parents) if each.is_relative_to(tempfile.gettempdir())]:
        folder.chmod(folder.stat().st_mode | 0o011)
    return place


@pytest.fixture
def installed(package: Path, shared: Path, tmp_path: Path) -> Iterator[Machine]:
    """A fresh machine with the package on it."""
    shutil.copy(package, shared)
    (tmp_path / "layers").mkdir()
    with machine(tmp_path / "layers", shared) as made:
        done = made.run("dpkg", "-i", shared / package.name)
        assert done.returncode == 0, done.stderr
        yield made


def test_installed_and_removed(installed: Machine) -> None:
    for program in ("/usr/sbin/choria-provisioner", "/usr/sbin/postgres-provisioner", "/usr/bin/mesh-provisioner"):
        assert installed.good(program, "--version") == f"{__version__}\n"
    done = installed.run("systemd-analyze", "verify", *UNITS)
    assert (done.returncode, done.stderr) == (0, "")
    # Nothing runs before it was configured.
    for unit in UNITS:
        assert installed.show(unit, "ActiveState") == "inactive"
        assert installed.show(unit, "UnitFileState") in {"disabled", "static"}
    assert installed.good("stat", "-c", "%U %a", ETC) == "root 755\n"
    assert installed.good("stat", "-c", "%U %a", "/etc/mesh-provisioner") == "root 700\n"
    assert installed.good("id", "-gn", "choria-provisioner") == "choria-provisioner\n"
    # The site's own files are not the package's.
    installed.good("sh", "-c", f"echo mine >{ETC}/choria.cfg; chmod 700 {ETC}")

    done = installed.run("dpkg", "--remove", "choria-provisioner")
    assert (done.returncode, done.stderr) == (0, "")
    gone = ("/usr/lib/choria-provisioner", "/usr/sbin/choria-provisioner", "/usr/share/choria-provisioner")
    assert [path for path in gone if installed.run("test", "-e", path).returncode == 0] == []
    assert installed.good("cat", f"{ETC}/choria.cfg") == "mine\n"
    assert installed.run("dpkg", "--purge", "choria-provisioner").returncode == 0


def test_manuals_and_completion(package: Path) -> None:
    listed = subprocess.run(["dpkg-deb", "-c", package], capture_output=True, text=True, check=True, timeout=60).stdout
    there = {line.split()[5].removeprefix(".") for line in listed.splitlines()}
    for program in ("choria-provisioner", "postgres-provisioner", "mesh-provisioner"):
        assert f"/usr/share/man/man8/{program}.8.gz" in there
        assert f"/usr/share/bash-completion/completions/{program}" in there
        assert f"/usr/share/zsh/vendor-completions/_{program}" in there
    version = subprocess.run(
        ["dpkg-deb", "-f", package, "Version"], capture_output=True, text=True, check=True, timeout=60
    )
    assert version.stdout.strip() == __version__


def test_a_site_that_had_the_go_package_keeps_its_files(package: Path, shared: Path, tmp_path: Path) -> None:
    shutil.copy(package, shared)
    (tmp_path / "layers").mkdir()
    with machine(tmp_path / "layers", shared) as made:
        made.good("install", "-d", "-m", "700", ETC)
        made.good("sh", "-c", f"echo 'workers: 4' >{ETC}/choria-provisioner.yaml")
        assert made.run("dpkg", "-i", shared / package.name).returncode == 0
        assert made.good("cat", f"{ETC}/choria-provisioner.yaml") == "workers: 4\n"
        assert made.good("stat", "-c", "%a", ETC) == "700\n"


# --- choria-provisioner.service --------------------------------------------------------------------------------------


def configure(on: Machine, server: NatsServer, **keys: object) -> None:
    """The two files and a helper, where the Go package has them."""
    values = {"workers": 4, "interval": "1m", "token": TOKEN, "site": "testing", "choria_insecure": True}
    values |= {"helper": str(ETC / "helper"), **keys}
    files = {
        "choria.cfg": f"identity = prov.example.net\nplugin.choria.middleware_hosts = 127.0.0.1:{server.port}\n",
        "choria-provisioner.yaml": json.dumps(values),
        "helper": HELPER,
    }
    for name, text in files.items():
        (on.shared / name).write_text(text)
        mode = "750" if name == "helper" else "640"
        on.good("install", "-g", "choria-provisioner", "-m", mode, on.shared / name, ETC / name)


@asynccontextmanager
async def fleet(server: NatsServer, number: int) -> AsyncIterator[MadeFleet]:
    """Servers that wait to be provisioned, and go on saying so."""

    async def resolve() -> list[str]:
        return [server.url]

    made = make_servers(number, version=1, token=TOKEN, now=time.time())
    async with open_nats(resolve, Options(name="fleet")) as bus:
        await bus.wait_connected()
        async with open_fleet(bus, made.servers) as running, trio.open_nursery() as nursery:

            async def announce() -> None:
                while True:
                    await running.announce()
                    await trio.sleep(1)

            nursery.start_soon(announce)
            yield made
            nursery.cancel_scope.cancel()


async def provisioned(on: Machine, server: NatsServer, number: int = 5) -> None:
    async with fleet(server, number) as made:
        with trio.move_on_after(90):
            while not all(each.node.received.done["restart"] for each in made.servers):
                await trio.sleep(0.1)
    got = [each.node.received.done["restart"] for each in made.servers]
    assert got == [1] * number, on.journal(CHORIA)


def drop_in(on: Machine, name: str, text: str = "") -> None:
    on.good("install", "-d", DROP_INS)
    if text:
        (on.shared / name).write_text(text)
    source = on.shared / name if text else Path("/usr/share/choria-provisioner") / name
    on.good("install", "-m", "644", source, DROP_INS / name)
    on.good("systemctl", "daemon-reload")


async def test_the_unit_at_work(installed: Machine, nats: NatsServer) -> None:
    configure(installed, nats)
    drop_in(installed, "state.conf", "[Service]\nStateDirectory=choria-provisioner\n")
    # It returns when the daemon says that it is at work.
    await trio.to_thread.run_sync(installed.start, CHORIA)
    assert installed.show(CHORIA, "ActiveState") == "active"
    await provisioned(installed, nats)
    # As the unit is shipped, the helper may do what the Go package's may.
    seen = installed.good("cat", "/var/lib/choria-provisioner/seen").split()
    assert seen == ["NoNewPrivs:", "0", "root", "etc"]

    await trio.to_thread.run_sync(installed.good, "systemctl", "reload", CHORIA)
    assert "Configuration reloaded" in installed.journal(CHORIA)
    assert "connected" in installed.show(CHORIA, "StatusText")
    await trio.to_thread.run_sync(installed.good, "systemctl", "stop", CHORIA)
    assert installed.show(CHORIA, "Result") == "success"
    assert installed.show(CHORIA, "ExecMainStatus") == "0"


@pytest.mark.parametrize("names", [("hardening.conf",), ("hardening.conf", "own-user.conf")], ids=" + ".join)
async def test_the_drop_ins_at_work(names: tuple[str, ...], installed: Machine, nats: NatsServer) -> None:
    configure(
        installed,
        nats,
        audit_log="/var/log/choria-provisioner/audit.log",
        logfile="/var/log/choria-provisioner/provisioner.log",
        monitor_port=await free_port(),
    )
    for name in names:
        drop_in(installed, name)
    await trio.to_thread.run_sync(installed.start, CHORIA)
    await provisioned(installed, nats)
    seen = installed.good("cat", "/var/lib/choria-provisioner/seen").split()
    assert seen == ["NoNewPrivs:", "1", "choria-provisioner" if "own-user.conf" in names else "root"]
    lines = installed.good("cat", "/var/log/choria-provisioner/audit.log").splitlines()
    assert [json.loads(line)["outcome"] for line in lines] == ["provisioned"] * 5
    await trio.to_thread.run_sync(installed.good, "systemctl", "stop", CHORIA)
    assert installed.show(CHORIA, "Result") == "success"


async def test_a_daemon_that_hangs_is_restarted(installed: Machine, nats: NatsServer) -> None:
    configure(installed, nats)
    # 2 seconds for the minute of the unit, so that the test needn't wait for it.
    drop_in(installed, "watchdog.conf", "[Service]\nWatchdogSec=2s\nRestartSec=100ms\n")
    await trio.to_thread.run_sync(installed.start, CHORIA)
    pid = installed.show(CHORIA, "MainPID")
    installed.good("kill", "-STOP", pid)

    def restarted() -> bool:
        return installed.show(CHORIA, "MainPID") not in {"0", pid} and installed.show(CHORIA, "SubState") == "running"

    await trio.to_thread.run_sync(installed.until, restarted, "a restart", CHORIA)
    assert installed.show(CHORIA, "NRestarts") == "1"
    assert "Watchdog timeout" in installed.journal(CHORIA)


async def test_an_upgrade_restarts_what_runs(installed: Machine, package: Path, nats: NatsServer) -> None:
    configure(installed, nats)
    await trio.to_thread.run_sync(installed.start, CHORIA)
    pid = installed.show(CHORIA, "MainPID")
    # The same version again is an upgrade to dpkg.
    await trio.to_thread.run_sync(installed.good, "dpkg", "-i", installed.shared / package.name)
    assert installed.show(CHORIA, "ActiveState") == "active"
    assert installed.show(CHORIA, "MainPID") not in {"0", pid}
    assert installed.show(MESH, "ActiveState") == "inactive"


async def test_what_is_refused_is_not_tried_again(installed: Machine, nats: NatsServer) -> None:
    configure(installed, nats, workers=-1)
    done = await trio.to_thread.run_sync(installed.run, "systemctl", "start", CHORIA)
    assert done.returncode != 0
    assert installed.show(CHORIA, "ExecMainStatus") == "2"
    assert (installed.show(CHORIA, "ActiveState"), installed.show(CHORIA, "NRestarts")) == ("failed", "0")
    assert "workers: must be a whole number" in installed.journal(CHORIA)


async def test_a_helper_is_not_left_behind(installed: Machine, nats: NatsServer) -> None:
    configure(installed, nats)
    (installed.shared / "deaf").write_text(f"#!/bin/sh\ntrap '' TERM\ntouch {installed.shared}/asked\nsleep 600\n")
    installed.good("install", "-m", "755", installed.shared / "deaf", ETC / "helper")
    await trio.to_thread.run_sync(installed.start, CHORIA)
    async with fleet(nats, 1):
        with trio.fail_after(60):
            while not (installed.shared / "asked").exists():
                await trio.sleep(0.05)
        await trio.to_thread.run_sync(installed.good, "systemctl", "stop", CHORIA)
    assert installed.show(CHORIA, "Result") == "success"
    assert installed.run("pgrep", "--full", "sleep 600").stdout == ""


# --- the two others --------------------------------------------------------------------------------------------------


async def test_the_mesh_unit_at_work(installed: Machine, tmp_path: Path) -> None:
    port = await free_port()
    (tmp_path / "mesh").mkdir()
    async with mesh(tmp_path / "mesh") as made:
        (installed.shared / "environment").write_text(f"MESH_SERVERS={made.server.url}\n")
        (installed.shared / "password").write_text(PASSWORDS["mesh-provisioner"] + "\n")
        drop = f"[Service]\nExecStart=\nExecStart={exec_start(MESH).replace('9182', str(port))}\n"
        (installed.shared / "port.conf").write_text(drop)
        installed.good("install", "-m", "644", installed.shared / "environment", "/etc/mesh-provisioner/")
        installed.good("install", "-m", "600", installed.shared / "password", "/etc/mesh-provisioner/")
        installed.good("install", "-D", "-t", f"/etc/systemd/system/{MESH}.d", installed.shared / "port.conf")
        installed.good("systemctl", "daemon-reload")
        await trio.to_thread.run_sync(installed.start, MESH)
        await ready(port)
        assert "mesh_provisioner_connected 1" in (await get(port, "/metrics"))[1]
        assert await made.code() == ""
        await trio.to_thread.run_sync(installed.good, "systemctl", "stop", MESH)
    assert installed.show(MESH, "Result") == "success"


def exec_start(unit: str) -> str:
    lines = (ROOT / "contrib" / "systemd" / unit).read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("ExecStart=")]
    return line.removeprefix("ExecStart=")


@pytest.fixture
def postgres(shared: Path) -> Iterator[Cluster]:
    """A server whose socket is in the directory that the machine shares."""
    found = postgres_lab.binaries(15)
    if found is None:
        pytest.skip("PostgreSQL 15 is not on this machine (Debian: apt-get install postgresql)")
    with cluster.running(binaries=found, settings=postgres_lab.SETTINGS, within=shared) as server:
        postgres_lab.prepare(server)
        yield server


def test_the_postgres_units_at_work(installed: Machine, postgres: Cluster, shared: Path) -> None:
    unit = "postgres-provisioner.service"
    grants = Path("/var/lib/postgres/grants")
    lab = Lab(postgres, shared)
    (shared / "environment").write_text(
        "".join(f"{name}={value}\n" for name, value in lab.environment().items() if name not in {"PATH", "PGPASSWORD"})
        + "PGPASSFILE=/etc/postgres-provisioner/pgpass\n"
    )
    escaped = postgres_lab.PASSWORD.replace("\\", "\\\\").replace(":", "\\:")
    (shared / "pgpass").write_text(f"*:*:*:{postgres_lab.PROVISIONER}:{escaped}\n")
    installed.good("install", "-m", "644", shared / "environment", "/etc/postgres-provisioner/environment")
    installed.good("install", "-m", "600", "-o", "postgres", shared / "pgpass", "/etc/postgres-provisioner/pgpass")
    installed.good("install", "-d", "-o", "postgres", grants)
    installed.start("postgres-provisioner.path")

    secret = lab.secret("n1", "wiki", "a-password")
    lab.write(consumer("n1", "wiki", str(grants / secret.name)))
    installed.good("install", "-m", "600", "-o", "postgres", secret, grants / secret.name)
    installed.good("install", "-m", "644", lab.manifest_path, grants / "mesh.json")
    # The change of the manifest alone starts it.
    role = "n1.wiki"
    installed.until(lambda: role in lab.roles(), f"the login {role}", unit)
    assert lab.works(role, "a-password", "postgres"), installed.journal(unit)
    # A change while a run is under way starts no second one: that is what the timer is for.
    installed.until(lambda: installed.show(unit, "ActiveState") == "inactive", "the end of the run", unit)
    assert installed.show(unit, "Result") == "success"
    # A rotation changes nothing but a secret.
    lab.secret("n1", "wiki", "another-password")
    installed.good("install", "-m", "600", "-o", "postgres", secret, grants / secret.name)
    installed.until(lambda: lab.works(role, "another-password", "postgres"), "the rotation", unit)
    assert not lab.works(role, "a-password", "postgres")


def test_removing_it_stops_what_runs(installed: Machine, shared: Path) -> None:
    unit = "postgres-provisioner.timer"
    installed.good("systemctl", "enable", "--now", unit)
    assert installed.show(unit, "ActiveState") == "active"
    assert installed.run("dpkg", "--purge", "choria-provisioner").returncode == 0
    assert installed.show(unit, "ActiveState") == "inactive"
    assert installed.run("test", "-e", f"/etc/systemd/system/timers.target.wants/{unit}").returncode != 0
