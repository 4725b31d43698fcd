"""The frame of the three programs: which command, which flags, how it ends."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from provisioner.cli.choria import PROGRAM
from provisioner.cli.program import Command, Program, guarded
from provisioner.errors import ConfigError, ConnectionLost, Fault, HelperSilent
from provisioner.version import __version__

ROOT = Path(__file__).parents[3]


def run(*words: str, cwd: Path | None = None, **variables: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "provisioner.cli.choria", *words],
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
        cwd=cwd,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **variables},
    )


@pytest.mark.parametrize("words", [["--version"], ["--debug", "--version"], ["run", "--version"]])
def test_the_version_is_bare_and_needs_no_other_file(words: list[str], tmp_path: Path) -> None:
    done = run(*words, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, __version__ + "\n", "")


def test_the_version_imports_nothing_that_takes_time() -> None:
    code = "import sys; from provisioner.cli.choria import PROGRAM; PROGRAM.main(['--version']); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True, cwd=ROOT, timeout=60
    )
    loaded = set(done.stdout.split())
    assert "provisioner.cli.program" in loaded
    assert loaded.isdisjoint({"trio", "nats", "cryptography", "yaml", "prometheus_client", "provisioner.config"})


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["--debug", "--help"]])
def test_help_lists_commands_flags_and_exit_codes(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert PROGRAM.main(words) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    for command in PROGRAM.commands:
        assert f"\n  {command.name} " in printed.out
    for flag in ("--debug", "--config", "--choria-config", "--pid", "--version"):
        assert flag in printed.out
    for code in (0, 1, 2, 3, 70):
        assert f"\n  {code:>2}  " in printed.out


@pytest.mark.parametrize("command", [command.name for command in PROGRAM.commands])
def test_help_of_each_command_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([command, "--help"], ["--help", command]):
        assert PROGRAM.main(words) == 0
        out = capsys.readouterr().out
        assert f"usage: choria-provisioner {command}" in out
        assert "Example:\n  choria-provisioner" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "the following arguments are required: --config"),
        (["run"], "the following arguments are required: --config"),
        (["--config"], "argument --config: expected one argument"),
        (["--conf", "x"], "the following arguments are required: --config"),
        (["--config", "x", "--frobnicate"], "unrecognized arguments: --frobnicate"),
        (["--config", "x", "run"], "unrecognized arguments: run"),
    ],
)
def test_wrong_flags_are_told_once_and_exit_2(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert PROGRAM.main(words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("error") == 1
    assert printed.err.endswith(f"choria-provisioner run: error: {said}\n")


@pytest.mark.parametrize(
    "words", [["frobnicate"], ["--debug", "frobnicate", "--config", "x"], ["--help", "frobnicate"]]
)
def test_an_unknown_command_is_told_with_those_there_are(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert PROGRAM.main(words) == 2
    there = ", ".join(command.name for command in PROGRAM.commands)
    assert capsys.readouterr() == ("", f"choria-provisioner: no such command: frobnicate; there are {there}\n")


SPY = """
def configure(parser): parser.add_argument("--name", default="")
def main(arguments):
    print(arguments.debug, arguments.name)
    return 3
"""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--name", "x"], "False x"),
        (["spy", "--name", "x"], "False x"),
        (["--debug", "--name", "x"], "True x"),
        (["--debug", "spy", "--name", "x"], "True x"),
        (["spy", "--debug"], "True "),
    ],
)
def test_the_default_command_and_the_place_of_debug(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "spy_command.py").write_text(SPY)
    monkeypatch.syspath_prepend(tmp_path)
    program = Program("spies", "Spies.", (Command("spy", "spy_command", "spy"),), default="spy")
    assert program.main(words) == 3
    assert capsys.readouterr().out == said + "\n"
    assert resource.getrlimit(resource.RLIMIT_CORE)[0] == 0


def test_without_a_default_a_command_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    program = Program("spies", "Spies.", (Command("spy", "spy_command", "spy on"),))
    assert program.main([]) == 2
    printed = capsys.readouterr()
    assert (printed.out, "spy on" in printed.err) == ("", True)


def _raise(error: BaseException) -> int:
    raise error


FAULT_LINES = "prog: f: k: is wrong (found x)\nprog: f: l: is wrong too\n"
FAULT = ConfigError([Fault("f", "k", "is wrong", "x"), Fault("f", "l", "is wrong too")])


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (FAULT, 2, FAULT_LINES),
        (BaseExceptionGroup("g", [ExceptionGroup("h", [FAULT])]), 2, FAULT_LINES),
        (ExceptionGroup("g", [ConnectionLost("gone"), FAULT]), 2, "prog: gone\n" + FAULT_LINES),
        (ConnectionLost("no broker answers"), 3, "prog: no broker answers\n"),
        (ExceptionGroup("g", [ConnectionLost("gone")]), 3, "prog: gone\n"),
        (HelperSilent("zero bytes received"), 1, "prog: zero bytes received\n"),
        (ConnectionLost(), 3, "prog: ConnectionLost\n"),
        (SystemExit(5), 5, ""),
        (SystemExit(), 0, ""),
        (SystemExit("text"), 2, ""),
        (KeyboardInterrupt(), 130, ""),
    ],
)  # fmt: skip
def test_what_is_foreseen_is_told_without_a_traceback(
    error: BaseException, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert guarded("prog", lambda: _raise(error)) == code
    assert capsys.readouterr() == ("", said)


@pytest.mark.parametrize("error", [KeyError("bug"), ExceptionGroup("g", [FAULT, KeyError("bug")])])
def test_a_bug_shows_its_traceback_and_exits_70(error: BaseException, capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded("prog", lambda: _raise(error)) == 70
    err = capsys.readouterr().err
    assert "Traceback (most recent call last)" in err
    assert "KeyError: 'bug'" in err


def test_an_exit_code_is_handed_on() -> None:
    assert guarded("prog", lambda: 1) == 1
