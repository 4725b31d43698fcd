"""Log lines as they are written: text on a terminal or pipe, JSON in a file, rotation, bounds, no secret."""

import json
import logging
import os
import re
import sys
from pathlib import Path

import pytest

from provisioner.cli.logs import LEVELS, Logs
from provisioner.errors import ConfigError
from provisioner.secret import Secret

log = logging.getLogger("provisioner.cycle")


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_text_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    with Logs("provisioner"):
        log.info("Provisioning %s", "n1.example.net", extra={"identity": "n1.example.net", "step": "jwt"})
        log.warning("Became leader after winning election")
        log.debug("unseen")
    printed = capsys.readouterr()
    assert printed.err == ""
    first, second = printed.out.splitlines()
    stamp = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
    # A field whose value the message has already isn't repeated.
    assert re.fullmatch(stamp + r" INFO  Provisioning n1\.example\.net step=jwt", first)
    assert re.fullmatch(stamp + r" WARN  Became leader after winning election", second)


def test_json_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with Logs("provisioner", "debug", str(path)):
        log.info("Provisioning %s", "n1", extra={"identity": "n1", "tries": 3, "why": None, "where": Path("/x")})
        log.warning("w")
        log.error("e")
        log.critical("c")
        log.debug("d")
    first, *rest = lines(path)
    assert list(first)[:4] == ["component", "level", "msg", "time"]
    time = str(first.pop("time"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", time)
    assert first == {
        "component": "provisioner",
        "level": "info",
        "msg": "Provisioning n1",
        "identity": "n1",
        "tries": 3,
        "why": None,
        "where": "/x",
    }
    assert [line["level"] for line in rest] == ["warning", "error", "fatal", "debug"]
    assert path.stat().st_mode & 0o7777 == 0o640 & ~_umask()


def _umask() -> int:
    old = os.umask(0)
    os.umask(old)
    return old


def test_the_words_of_loglevel() -> None:
    assert list(LEVELS) == ["debug", "info", "warn", "error", "fatal"]


@pytest.mark.parametrize(
    ("level", "seen"),
    [
        ("debug", ["debug", "info", "warning", "error", "fatal"]),
        ("info", ["info", "warning", "error", "fatal"]),
        ("warn", ["warning", "error", "fatal"]),
        ("error", ["error", "fatal"]),
        ("fatal", ["fatal"]),
    ],
)
def test_levels(level: str, seen: list[str], tmp_path: Path) -> None:
    path = tmp_path / "log"
    with Logs("provisioner", "fatal", str(path)) as logs:
        logs.set_level(level)
        for number in LEVELS.values():
            log.log(number, "x")
    assert [line["level"] for line in lines(path)] == seen


def test_the_flag_debug_forces_debug_whatever_is_set_later(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with Logs("provisioner", "fatal", str(path), debug=True) as logs:
        log.debug("one")
        logs.set_level("error")
        log.debug("two")
    assert [line["msg"] for line in lines(path)] == ["one", "two"]


def test_a_secret_learned_later_is_masked_from_then_on(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with Logs("provisioner", "info", str(path), secrets=[Secret("firstsecret")]) as logs:
        logs.hide(Secret("secondsecret"))
        log.info("firstsecret secondsecret")
    assert lines(path)[0]["msg"] == "**** ****"


def test_libraries_only_warn_even_at_debug(tmp_path: Path) -> None:
    path = tmp_path / "log"
    library = logging.getLogger("nats.aio.client")
    with Logs("provisioner", "debug", str(path)):
        library.debug("PUB with a token in it")
        library.info("i")
        library.warning("w")
    assert [line["msg"] for line in lines(path)] == ["w"]


HOSTILE = 'a\nlevel=fatal\r\x1b[2Jb\x7f\x9b31m\u202e\u2028é"\ud800'


def test_a_line_is_one_line_whatever_a_server_sends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log"
    with Logs("provisioner"), Logs("provisioner", "info", str(path)):
        log.info("%s", HOSTILE, extra={"identity": "x" + HOSTILE})
    (text,) = capsys.readouterr().out.split("\n")[:-1]
    assert text.isprintable()
    assert r"a\nlevel=fatal\r\x1b[2Jb\x7f\x9b31m\u202e\u2028é" in text
    (raw,) = path.read_bytes().split(b"\n")[:-1]
    assert all(0x20 <= byte < 0x7F for byte in raw)
    assert json.loads(raw)["msg"] == HOSTILE


def test_a_traceback_is_kept_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log"
    with Logs("provisioner"), Logs("provisioner", "info", str(path)):
        try:
            raise KeyError("\x1b[2J")
        except KeyError:
            log.exception("A bug")
    first, *trace = capsys.readouterr().out.splitlines()
    assert first.endswith("ERROR A bug")
    assert all(line.startswith("    ") and line.isprintable() for line in trace)
    (line,) = lines(path)
    assert line["msg"] == "A bug"
    assert "Traceback" in str(line["trace"])


def test_a_secret_is_masked_wherever_it_turns_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log"
    secrets = [Secret("hunter2hunter2"), Secret("")]
    with Logs("provisioner", secrets=secrets), Logs("provisioner", "info", str(path), secrets=secrets):
        try:
            raise ValueError("user:hunter2hunter2@broker")
        except ValueError:
            log.exception("sent hunter2hunter2", extra={"sent": ["hunter2hunter2"], "token": Secret("other")})
    printed = capsys.readouterr().out + path.read_text()
    assert "hunter2" not in printed
    assert "other" not in printed
    assert "sent ****" in printed


def test_a_short_secret_garbles_no_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with Logs("provisioner", "info", str(path), secrets=[Secret("a")]):
        log.info("a banana")
    assert lines(path)[0]["msg"] == "a banana"


def test_rotation_by_rename(tmp_path: Path) -> None:
    path, old = tmp_path / "log", tmp_path / "log.1"
    with Logs("provisioner", "info", str(path)) as logs:
        log.info("one")
        path.rename(old)
        log.info("two")
        logs.reopen()
        log.info("three")
    assert [line["msg"] for line in lines(old)] == ["one", "two"]
    assert [line["msg"] for line in lines(path)] == ["three"]


def test_rotation_that_fails_keeps_the_old_file(tmp_path: Path) -> None:
    path, old = tmp_path / "d" / "log", tmp_path / "old"
    path.parent.mkdir()
    with Logs("provisioner", "info", str(path)) as logs:
        path.parent.rename(old)
        logs.reopen()
        log.info("still here")
    said = [line["msg"] for line in lines(old / "log")]
    assert said == [f"The log file {path} can't be opened anew: No such file or directory", "still here"]


def test_reopening_standard_output_does_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with Logs("provisioner") as logs:
        logs.reopen()
        log.info("x")
    assert capsys.readouterr().out.endswith("INFO  x\n")


def test_the_words_for_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for word in ("", "stdout", "stderr", "discard"):
        with Logs("provisioner", "info", word):
            log.info("to %s", word)
    printed = capsys.readouterr()
    assert [line.rpartition(" to ")[2] for line in printed.out.splitlines()] == ["", "stdout"]
    assert [line.rpartition(" to ")[2] for line in printed.err.splitlines()] == ["stderr"]
    assert list(tmp_path.iterdir()) == []


def test_a_log_file_that_cannot_be_opened_is_the_operators_to_set_right(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        Logs("provisioner", "info", str(tmp_path), config_file="/etc/p.yaml")
    assert str(caught.value) == f"/etc/p.yaml: logfile: the log file can't be opened: Is a directory (found {tmp_path})"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_is_told_once_and_stops_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with Logs("provisioner", "info", "/dev/full"):
        for _ in range(5):
            log.info("x")
    assert capsys.readouterr().err == "The log can't be written: OSError(28, 'No space left on device') (told once)\n"


def test_afterwards_logging_is_as_before(tmp_path: Path) -> None:
    root, ours = logging.getLogger(), logging.getLogger("provisioner")
    before = root.level, ours.level, list(root.handlers)
    with Logs("provisioner", "debug", str(tmp_path / "log")):
        assert log.isEnabledFor(logging.DEBUG)
    assert (root.level, ours.level, list(root.handlers)) == before


def test_an_ascii_terminal_gets_escapes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with (tmp_path / "out").open("w", encoding="ascii") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        with Logs("provisioner"):
            log.info("é")
    assert (tmp_path / "out").read_text().endswith("INFO  \\xe9\n")
