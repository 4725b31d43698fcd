"""The systemd units: read as systemd reads them, with flags that the program has."""

import configparser
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from provisioner.cli.postgres import PROGRAM

UNITS = Path(__file__).parents[2] / "contrib" / "systemd"
NAMES = ("service", "path", "timer")


class Unit(configparser.RawConfigParser):
    """A unit file: keys keep their case, and a key may stand more than once."""

    def __init__(self, kind: str) -> None:
        super().__init__(strict=False, delimiters=("=",))
        self.text = (UNITS / f"postgres-provisioner.{kind}").read_text()
        self.read_string(self.text)

    def optionxform(self, optionstr: str) -> str:
        return optionstr


def test_the_service_calls_the_program_as_it_is() -> None:
    words = shlex.split(Unit("service")["Service"]["ExecStart"])
    command = PROGRAM.commands[0]
    assert Path(words[0]).name == PROGRAM.name
    assert words[1] == command.name
    arguments = PROGRAM.parser(command).parse_args(words[2:])
    assert arguments.manifest == Path("/var/lib/postgres/grants/mesh.json")
    assert arguments.grants == Path("/var/lib/postgres/grants")
    assert not arguments.watch


def test_no_burst_of_changes_switches_them_off() -> None:
    assert Unit("service")["Unit"]["StartLimitIntervalSec"] == "0"
    assert Unit("path")["Path"]["TriggerLimitIntervalSec"] == "0"


def test_a_rotation_starts_it_too() -> None:
    lines = Unit("path").text.splitlines()
    assert "PathModified=/var/lib/postgres/grants/mesh.json" in lines
    assert "PathModified=/var/lib/postgres/grants" in lines


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze here")
def test_systemd_understands_them(tmp_path: Path) -> None:
    for kind in NAMES:
        text = Unit(kind).text.replace("/usr/sbin/postgres-provisioner", "/bin/true")
        (tmp_path / f"postgres-provisioner.{kind}").write_text(text)
    paths = [str(tmp_path / f"postgres-provisioner.{kind}") for kind in NAMES]
    done = subprocess.run(
        ["systemd-analyze", "verify", *paths], check=False, capture_output=True, text=True, timeout=50
    )
    said = [line for line in done.stderr.splitlines() if "postgres-provisioner" in line]
    assert said == []
