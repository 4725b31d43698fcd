"""Bad configuration files: the very lines that an operator sees on standard error, and exit code 2."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from provisioner.cli.choria import PROGRAM
from provisioner.errors import EXIT_REFUSED

CASES = (Path(__file__).parents[2] / "fixtures" / "bad-configuration.txt").read_text()
GOOD = "helper: /bin/sh helper\ntoken: toktoktok\n"


def _cases() -> dict[str, tuple[str, list[str]]]:
    found = {}
    for case in re.split(r"(?m)^=== ", CASES)[1:]:
        name, _, rest = case.partition("\n")
        content, _, printed = rest.partition("--- printed\n")
        found[name] = content, printed.split("\n\n")[0].splitlines()
    return found


BAD = _cases()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "helper").write_text("#!/bin/sh\n")
    (tmp_path / "helper").chmod(0o755)
    (tmp_path / "plain").write_text("#!/bin/sh\n")
    return tmp_path


def test_there_are_twenty() -> None:
    assert len(BAD) >= 20


@pytest.mark.parametrize("kind", BAD)
def test_the_lines_printed(kind: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content, lines = BAD[kind]
    Path("p.yaml").write_text(content)
    # The Choria configuration is missing too: it isn't looked at before the YAML is right.
    assert PROGRAM.main(["--config", "p.yaml", "--choria-config", "/nowhere"]) == EXIT_REFUSED
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == [f"choria-provisioner: p.yaml: {line}" for line in lines]


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (lambda path: None, "can't be read: No such file or directory"),
        (lambda path: path.mkdir(), "can't be read: Is a directory"),
        (lambda path: path.write_bytes(b"site: \xff"), "is not UTF-8 at byte 6"),
        (
            lambda path: path.write_bytes(b"site: a\0b"),
            "can't be read as YAML: it has characters that YAML doesn't allow",
        ),
        (lambda path: path.write_text("[" * 100_000), "can't be read as YAML: it is nested too deep"),
        (lambda path: path.write_text("a: " + "[" * 30 + "]" * 30), "can't be read as YAML: it is nested too deep"),
        (lambda path: path.write_text("a: &x [*x]"), "can't be read as YAML: it is nested too deep"),
        (lambda path: path.write_text("#" * 1_100_000), "can't be read as YAML: it has over 1048576 characters"),
        (
            lambda path: path.write_text("<<: {a: 1}"),
            "can't be read as YAML: line 1: merge keys (<<) are not taken here",
        ),
        (lambda path: path.write_text("? [a]\n: b"), "can't be read as YAML: line 1: a key must be a plain word"),
    ],
)
def test_a_file_that_cannot_be_read(
    prepare: object, said: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert callable(prepare)
    prepare(Path("p.yaml"))
    assert PROGRAM.main(["--config", "p.yaml"]) == EXIT_REFUSED
    key = "" if "p.yaml" in said else " "
    assert capsys.readouterr().err == f"choria-provisioner: p.yaml:{key}{said}\n"


def test_choria_cfg_comes_second(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("p.yaml").write_text(GOOD)
    assert PROGRAM.main(["--config", "p.yaml", "--choria-config", "/nowhere/choria.cfg"]) == EXIT_REFUSED
    assert capsys.readouterr().err == "choria-provisioner: /nowhere/choria.cfg: there is no such file\n"


def test_as_a_process_there_is_no_traceback(place: Path) -> None:
    Path("p.yaml").write_text("workers: -1\n" + GOOD)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("COV")}
    run = subprocess.run(
        [sys.executable, "-m", "provisioner.cli.choria", "run", "--config", "p.yaml"],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        env={**environment, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    assert (run.returncode, run.stdout) == (EXIT_REFUSED, "")
    assert run.stderr == (
        "choria-provisioner: p.yaml: workers: must be a whole number from 0 to 1000 (0: one for each CPU) (found -1)\n"
    )
