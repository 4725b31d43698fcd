"""``status`` and the look of all the operator's commands: on a terminal of 80 columns, in a pipe, without colour."""

import fcntl
import json
import os
import pty
import re
import select
import shlex
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from provisioner.cli.choria import PROGRAM
from provisioner.cli.screen import age, wrapped
from provisioner.errors import EXIT_FINDING, EXIT_OK, EXIT_REFUSED, EXIT_UNREACHABLE
from tests.integration.daemon import write_helper

LONG = "a-server-with-a-very-long-name." + "x" * 60 + ".example.net"
STATUS: dict[str, Any] = {
    "version": "1.2.3",
    "identity": "prov.example.net",
    "site": "london",
    "started_at": 1000.0,
    "now": 4725.0,
    "connected": False,
    "broker": "nats://broker:4222",
    "connection_error": "connection refused \x1b[31m",
    "role": "standby",
    "leader": False,
    "paused": True,
    "election": "bucket CHORIA_LEADER_ELECTION, 60 s",
    "workers": 4,
    "interval": 60.0,
    "servers": {"waiting": 700, "working": 1, "resting": 3},
    "at_work": [{"identity": LONG, "step": "Asking the helper", "age": 8.04, "step_age": 7.5}],
    "waiting": [
        {"identity": f"n{number}.example.net", "age": 125.0, "source": "event", "last": "refused"}
        for number in range(500)
    ],
    "outcomes": {"provisioned": 12, "refused": 3},
    "refused_sightings": {"bad_identity": 2, "roster_full": 0},
    "recent": [
        {
            "identity": f"n{number}.example.net",
            "outcome": "refused",
            "step": "Fetching JWT",
            "text": "Incorrect provision token supplied \x1b]0;evil\x07 " + "word " * 30,
            "at": 4000.0 + number,
            "seconds": 0.5,
            "attempt": 2,
            "reason": "",
        }
        for number in range(200)
    ],
}


class Page:
    """An HTTP page that answers as told."""

    def __init__(self) -> None:
        self.body = json.dumps(STATUS).encode()
        self.code = 200
        self.asked: list[str] = []
        page = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                page.asked.append(self.path)
                self.send_response(page.code)
                self.end_headers()
                self.wfile.write(page.body)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def page() -> Iterator[Page]:
    made = Page()
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = PROGRAM.main(["status", *words])
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    return code, printed.out, printed.err


def test_plain_lines_in_a_pipe(page: Page, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = told(capsys, "--url", page.url)
    lines = out.splitlines()
    assert code == EXIT_OK
    assert lines[:9] == [
        "provisioner  prov.example.net 1.2.3, site london",
        "running for  1h02m, 4 workers, discovery every 1m00s",
        "role         standby, bucket CHORIA_LEADER_ELECTION, 60 s, paused",
        "broker       not connected: connection refused \\x1b[31m",
        "servers      700 waiting, 1 working, 3 resting",
        "outcomes     12 provisioned, 3 refused",
        "turned away  2 bad_identity",
        "",
        "at work (server, age, step, its age)",
    ]
    assert lines[9] == f"  {LONG}  8.0s  Asking the helper  7.5s"
    assert "  n0.example.net    2m05s  event  refused" in lines
    assert "  and 200 more" in lines
    newest = lines[lines.index("last outcomes, newest first") + 1]
    assert newest.startswith("  8m46s ago  n199.example.net  refused  Fetching JWT: Incorrect provision token supplied")
    assert "\x1b" not in out
    assert "\x07" not in out


def test_as_json_it_is_the_page(page: Page, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = told(capsys, "--url", page.url + "/", "--json")
    assert (code, json.loads(out)) == (EXIT_OK, STATUS)


def test_one_server(page: Page, capsys: pytest.CaptureFixture[str]) -> None:
    last = {**STATUS["recent"][0], "at": time.time() - 90, "text": "no"}
    about = {"identity": "n1&x", "state": "waiting", "last": last}
    page.body = json.dumps({"version": "1", "server": about}).encode()
    code, out, _ = told(capsys, "--url", page.url, "n1&x")
    assert page.asked == ["/status?server=n1%26x"]
    assert code == EXIT_OK
    assert re.fullmatch(r"n1&x: waiting\n1m3\ds ago  n0\.example\.net  refused  Fetching JWT: no\n", out)
    page.body = b'{"version":"1","server":{"identity":"n9","state":"unknown","last":null}}'
    assert told(capsys, "--url", page.url, "n9")[:2] == (EXIT_FINDING, "n9: unknown\n")


@pytest.mark.parametrize(
    ("code", "body", "exit_code", "said"),
    [
        (403, b"", EXIT_REFUSED, "shows servers to its own machine only; ask there, or set status_listen: all"),
        (404, b"", EXIT_REFUSED, "is no page of a choria-provisioner: it answers 404"),
        (200, b"hello", EXIT_UNREACHABLE, "is not the page of a choria-provisioner: Expecting value at character 0"),
        (200, b"{}", EXIT_UNREACHABLE, "is not the page of a choria-provisioner"),
        (200, b"[" * 100_000, EXIT_UNREACHABLE, "is not the page of a choria-provisioner: nested too deep"),
    ],
)
def test_what_is_no_page_of_ours(
    page: Page, capsys: pytest.CaptureFixture[str], code: int, body: bytes, exit_code: int, said: str
) -> None:
    page.code, page.body = code, body
    assert told(capsys, "--url", page.url)[::2] == (
        exit_code,
        f"choria-provisioner: {page.url}/status{':' if code != 200 else ''} {said}\n",
    )


def test_where_the_page_is_comes_from_the_configuration(
    page: Page, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "p.yaml"
    # Nothing else of the file counts: an operator may not read the keys, and the daemon runs all the same.
    file.write_text(f"monitor_port: {page.server.server_port}\nhelper: /gone\njwt_verify_cert: /secret\n")
    assert told(capsys, "--config", str(file))[0] == EXIT_OK
    for content, said in (
        ("helper: /x", "monitor_port: is not set, so the daemon has no page to ask; set it and restart the daemon"),
        ("monitor_port: x", "monitor_port: must be a port number from 1 to 65535, or 0 for none (found x)"),
        ("a: [", "can't be read as YAML: "),
    ):
        file.write_text(content)
        code, _, err = told(capsys, "--config", str(file))
        assert code == EXIT_REFUSED
        assert said in err
    assert told(capsys, "--config", str(tmp_path / "none"))[0] == EXIT_REFUSED
    assert told(capsys, "--url", "ftp://x")[0] == EXIT_REFUSED
    code, _, err = told(capsys, "--url", "http://127.0.0.1:1")
    assert code == EXIT_UNREACHABLE
    assert err == (
        "choria-provisioner: http://127.0.0.1:1 does not answer: Connection refused. "
        "Is the daemon running, with this monitor_port?\n"
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0s"), (9.96, "10.0s"), (59.9, "59s"), (60, "1m00s"), (3599, "59m59s"), (7260, "2h01m"), (180_000, "2d02h")],
)
def test_ages(seconds: float, text: str) -> None:
    assert age(seconds) == text


def test_wrapping() -> None:
    assert wrapped("a b", 3, None) == "a b"
    assert wrapped("aaaa bbbb cccc dddd eeee", 4, 20) == "aaaa bbbb cccc dddd\n    eeee"


# --- terminals and pipes --------------------------------------------------------------------------------------------


class Terminal:
    """A process on a terminal of 80 columns and 24 lines."""

    def __init__(self, *words: str, **environ: str) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        environment = {k: v for k, v in os.environ.items() if k not in {"NO_COLOR", "COLUMNS", "LINES"}}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "provisioner.cli.choria", *words],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**environment, "TERM": "xterm-256color", **environ},
        )
        os.close(slave)
        self.data = b""

    def read(self, until: bytes | None = None, seconds: float = 30) -> str:
        """Reads what it shows, to its end or until it has shown ``until``."""
        end = time.monotonic() + seconds
        while until is None or until not in self.data:
            ready, _, _ = select.select([self.master], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"waited in vain; it showed {self.data[-2000:]!r}"
            try:
                chunk = os.read(self.master, 65536)
            except OSError:  # the last one has closed the terminal
                break
            if not chunk:
                break
            self.data += chunk
        return self.data.decode()

    def end(self) -> int:
        if self.process.poll() is None:
            self.read()
        code = self.process.wait(30)
        os.close(self.master)
        return code


def widest(shown: str) -> int:
    bare = re.sub(r"\x1b\[[0-9]*A", "\n", shown)  # up: another frame begins
    bare = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", bare).replace("\r", "")
    return max(map(len, bare.splitlines()))


@pytest.mark.parametrize("colour", [{}, {"NO_COLOR": "1"}])
def test_a_live_table_within_80_columns_and_24_lines(page: Page, colour: dict[str, str]) -> None:
    terminal = Terminal("status", "--url", page.url, **colour)
    with_frames = time.monotonic() + 30
    while terminal.data.count(b"last outcomes") < 3:  # it looks again and again
        assert time.monotonic() < with_frames
        terminal.data += os.read(terminal.master, 65536)
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.end() == EXIT_OK
    shown = terminal.data.decode()
    assert "Traceback" not in shown
    assert "700 waiting" in shown
    assert re.search(r"and 69\d more", shown)
    assert widest(shown) <= 80
    first = shown.partition("provisioner  ")[2].partition("provisioner  ")[0]
    assert first.count("\n") < 24
    coloured = re.search(r"\x1b\[[0-9;]*3[0-9]m", shown)
    assert coloured is None
    assert "\x1b]0;" not in shown


def test_a_page_that_goes_away_is_told_and_waited_for(page: Page) -> None:
    terminal = Terminal("status", "--url", page.url)
    terminal.read(b"last outcomes")
    page.code = 500
    page.body = b""
    terminal.read(b"is no page")
    page.code, page.body = 200, json.dumps({**STATUS, "workers": 77}).encode()
    terminal.read(b"77 workers")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.end() == EXIT_OK


def test_a_slow_terminal_only_makes_it_slower(page: Page) -> None:
    terminal = Terminal("status", "--url", page.url)
    time.sleep(2.5)  # nobody reads: some four kilobytes fit into a terminal
    assert terminal.process.poll() is None
    terminal.read(b"last outcomes")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.end() == EXIT_OK


def test_helper_and_check_on_a_terminal(tmp_path: Path) -> None:
    helper = write_helper(tmp_path, '#!/bin/sh\necho \'{"configuration":{},"key":"x"}\'\n')
    terminal = Terminal("helper", "--command", str(helper))
    assert terminal.end() == EXIT_FINDING
    assert widest(terminal.data.decode()) <= 80
    (tmp_path / "p.yaml").write_text(f"helper: {helper}\ntoken: t\nworkers: 1001\n")
    terminal = Terminal("check", "--config", str(tmp_path / "p.yaml"), "--choria-config", str(tmp_path / "c"))
    assert terminal.end() == EXIT_REFUSED
    shown = terminal.data.decode()
    assert widest(re.sub(r"\S{60,}", "", shown)) <= 80  # a long path is not broken
    assert "\x1b" not in shown


def test_a_reader_who_has_seen_enough_is_no_error(page: Page) -> None:
    page.body = json.dumps({**STATUS, "waiting": STATUS["waiting"] * 40}).encode()
    line = f"{sys.executable} -m provisioner.cli.choria status --url {page.url} 2>&1 >&3 | cat >&2"
    run = subprocess.run(
        ["bash", "-c", f"{{ {line}; }} 3>&1 | head -1; exit ${{PIPESTATUS[0]}}"],
        capture_output=True,
        timeout=50,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, b"")
    assert run.stdout == b"provisioner  prov.example.net 1.2.3, site london\n"


def test_an_ascii_terminal_is_no_error(page: Page) -> None:
    page.body = json.dumps({**STATUS, "site": "Zürich"}).encode()
    run = subprocess.run(
        [sys.executable, "-m", "provisioner.cli.choria", "status", "--url", page.url],
        capture_output=True,
        timeout=50,
        check=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert b"site Z\\xfcrich" in run.stdout


@pytest.mark.parametrize("command", [command.name for command in PROGRAM.commands])
def test_help_shows_an_example_within_80_columns(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert PROGRAM.main([command, "--help"]) == EXIT_OK
    out = capsys.readouterr().out
    example = out.partition("Example:\n")[2].strip()
    assert example.startswith(f"choria-provisioner {command} ") or example == f"choria-provisioner {command}"
    before = out.partition("Example:\n")[0]
    assert max(map(len, before.splitlines())) <= 80
    flags = {word for word in shlex.split(example) if word.startswith("--")}
    assert all(flag in before for flag in flags)
