"""The shipped units start what exists, with flags that exist, and systemd takes them."""

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
