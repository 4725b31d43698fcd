"""The shipped units start what exists, with flags that exist, and systemd takes them."""

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from provisioner.cli.choria import PROGRAM

UNITS = Path(__file__).parents[1] / "contrib" / "systemd"
UNIT = UNITS / "choria-provisioner.service"


def settings(unit: Path) -> dict[str, str]:
    lines = (line for line in unit.read_text().splitlines() if "=" in line and not line.startswith("#"))
    return dict(line.split("=", 1) for line in lines)


def test_the_unit_has_the_paths_and_flags_of_the_go_package() -> None:
    program, command, *flags = shlex.split(settings(UNIT)["ExecStart"])
    assert (program, command) == ("/usr/sbin/choria-provisioner", "run")
    (run,) = [each for each in PROGRAM.commands if each.name == command]
    found = PROGRAM.parser(run).parse_args(flags)
    assert found.config == Path("/etc/choria-provisioner/choria-provisioner.yaml")
    assert found.choria_config == Path("/etc/choria-provisioner/choria.cfg")


def test_the_unit_ends_the_daemon_politely_and_is_told_by_it() -> None:
    found = settings(UNIT)
    assert found["KillMode"] == "mixed"
    assert found["Type"] == "notify"
    assert found["RestartPreventExitStatus"] == "2"
    assert found["ExecReload"] == "/bin/kill -HUP $MAINPID"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    # The program itself need not be installed where the tests run.
    (tmp_path / UNIT.name).write_text(UNIT.read_text().replace("/usr/sbin/choria-provisioner", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / UNIT.name)],
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    # It may complain about other units of this machine.
    assert done.returncode == 0, done.stderr
    assert UNIT.name not in done.stderr


CONTRIB = UNITS.parent
SYSTEMD = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
SERVICES = ("choria-provisioner", "mesh-provisioner", "postgres-provisioner")


def analyzed(verb: str, place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", verb, *words],
        cwd=place,
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )


def laid(place: Path, *drop_ins: str) -> Path:
    """All units as a machine has them, with a program that is there; drop-ins for choria-provisioner."""
    for unit in UNITS.iterdir():
        if unit.suffix != ".conf":
            lines = [f"{line.split('=')[0]}=/bin/true" if line.startswith("ExecStart=") else line
                     for line in unit.read_text().splitlines()]  # fmt: skip
            (place / unit.name).write_text("\n".join(lines))
    folder = place / "choria-provisioner.service.d"
    folder.mkdir()
    for name in drop_ins:
        shutil.copy(UNITS / name, folder)
    return place


@SYSTEMD
@pytest.mark.parametrize("drop_ins", [(), ("hardening.conf",), ("hardening.conf", "own-user.conf")], ids=str)
def test_systemd_takes_all_units_with_their_drop_ins(drop_ins: tuple[str, ...], tmp_path: Path) -> None:
    units = sorted(path.name for path in laid(tmp_path, *drop_ins).iterdir() if path.is_file())
    assert len(units) == 5
    done = analyzed("verify", tmp_path, *[f"./{unit}" for unit in units])
    assert (done.returncode, [line for line in done.stderr.splitlines() if "provisioner" in line]) == (0, [])


def exposure(place: Path, name: str) -> float:
    done = analyzed("security", place, "--offline=true", f"./{name}.service")
    (line,) = [line for line in done.stdout.splitlines() if "Overall exposure level" in line]
    return float(line.split(":")[1].split()[0])


@SYSTEMD
@pytest.mark.parametrize("name", SERVICES)
def test_hardened_units_are_hardly_exposed(name: str, tmp_path: Path) -> None:
    assert exposure(laid(tmp_path, "hardening.conf"), name) < 3


@SYSTEMD
def test_the_bare_unit_does_not_bind_the_sites_helper(tmp_path: Path) -> None:
    # systemd calls it unsafe: it may do nearly all that the Go package's unit may.
    assert exposure(laid(tmp_path), "choria-provisioner") > 8
    binding = {"NoNewPrivileges", "ProtectSystem", "ProtectHome", "PrivateTmp", "CapabilityBoundingSet", "UMask"}
    binding |= {"SystemCallFilter", "RestrictAddressFamilies", "PrivateDevices", "MemoryDenyWriteExecute"}
    assert not binding & set(settings(UNIT))


def test_daemons_tell_when_they_are_ready_and_that_they_live() -> None:
    for name in ("choria-provisioner", "mesh-provisioner"):
        found = settings(UNITS / f"{name}.service")
        assert (found["Type"], found["WatchdogSec"], found["KillMode"]) == ("notify", "60s", "mixed")


@pytest.mark.skipif(shutil.which("systemd-sysusers") is None, reason="no systemd-sysusers here")
def test_users_are_made(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    words = ["systemd-sysusers", f"--root={tmp_path}", str(CONTRIB / "sysusers.d" / "choria-provisioner.conf")]
    subprocess.run(words, check=True, capture_output=True, timeout=50)
    users = {line.split(":")[0]: line.split(":")[5:] for line in (tmp_path / "etc" / "passwd").read_text().splitlines()}
    assert users["choria-provisioner"] == ["/var/lib/choria-provisioner", "/usr/sbin/nologin"]
    assert users["postgres"][0] == "/var/lib/postgresql"
    wanted = {settings(path).get("User") for path in UNITS.glob("*") if "User=" in path.read_text()}
    assert wanted - {"root", None} <= set(users)


@pytest.mark.skipif(
    shutil.which("systemd-tmpfiles") is None or os.geteuid() != 0, reason="no systemd-tmpfiles, or no root"
)
def test_places_are_made_and_a_sites_own_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "etc" / "choria-provisioner").mkdir(parents=True, mode=0o700)
    done = subprocess.run(
        ["systemd-tmpfiles", "--create", f"--root={tmp_path}", CONTRIB / "tmpfiles.d" / "choria-provisioner.conf"],
        check=False,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert (done.returncode, done.stderr) == (0, "")
    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in (tmp_path / "etc").iterdir()}
    assert modes["choria-provisioner"] == "0o700"
    assert (modes["postgres-provisioner"], modes["mesh-provisioner"]) == ("0o755", "0o700")
