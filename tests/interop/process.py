"""Programs under test as processes, and waiting for what they do.

Nothing here sleeps for a fixed time: each wait polls a condition up to a generous deadline, and says what it saw last.
"""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import trio

READY_TIMEOUT = 120.0
"""Seconds for a process to come up, on a machine that is busy with other things. Bounds a failure, not a speed."""
POLL = 0.05


class Died(AssertionError):
    """A process of the harness ended by itself; the message holds the end of its log."""


def free_port() -> int:
    """A TCP port on 127.0.0.1 that was free a moment ago: Choria can't be asked to choose one itself."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(condition: Callable[[], object], what: str, timeout: float = READY_TIMEOUT) -> None:
    """Blocks until ``condition()`` is true; for fixtures. AssertionError names ``what`` after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout} s in vain: {what}")
        time.sleep(POLL)


async def until(condition: Callable[[], object], what: str, timeout: float = READY_TIMEOUT) -> None:
    """As ``wait_until``, for tests: other tasks run meanwhile, and ``condition`` may block (it runs in a thread)."""
    deadline = trio.current_time() + timeout
    while not await trio.to_thread.run_sync(condition):
        if trio.current_time() > deadline:
            raise AssertionError(f"waited {timeout} s in vain: {what}")
        await trio.sleep(POLL)


class Process:
    """One program under test: output to ``<directory>/<name>.log``, killed by ``stop``.

    Attributes:
        name: short, for messages.
        log: the file with all it printed.
        popen: the running process, or the last one.
    """

    def __init__(self, name: str, directory: Path, argv: list[str], *, env: dict[str, str] | None = None) -> None:
        self.name = name
        self.directory = directory
        self.log = directory / f"{name}.log"
        self.argv = argv
        self.env = {"PATH": os.environ["PATH"], "HOME": str(directory), "USER": "choria"} | (env or {})
        self.popen: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it; its standard input stays open as long as we live, and the harness ends when it closes."""
        with self.log.open("ab") as out:
            self.popen = subprocess.Popen(
                self.argv,
                cwd=self.directory,
                env=self.env,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Its process id (an accepted restart keeps it: the server executes itself)."""
        assert self.popen is not None
        return self.popen.pid

    def code(self) -> int | None:
        """Its exit code (negative: a signal), or ``None`` while it runs."""
        return None if self.popen is None else self.popen.poll()

    def text(self) -> str:
        """All it printed so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def said(self, words: str) -> bool:
        """Whether it printed ``words``.

        Raises:
            Died: it did not, and has ended.
        """
        ended = self.code() is not None
        if words in self.text():
            return True
        if ended:
            raise Died(f"{self.name} ended with {self.code()} before it said {words!r}:\n{self.tail()}")
        return False

    def tail(self, lines: int = 40) -> str:
        """The end of what it printed."""
        return "\n".join(self.text().splitlines()[-lines:])

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal, to this process only."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL, and waits until it is gone."""
        assert self.popen is not None
        self.popen.kill()
        self.stop()

    def stop(self, timeout: float = 10.0) -> None:
        """SIGTERM, then SIGKILL after ``timeout`` seconds; no process of it is left. Does nothing when it has ended."""
        if self.popen is None:
            return
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGCONT)
            self.popen.terminate()
            try:
                self.popen.wait(timeout)
            except subprocess.TimeoutExpired:
                self.popen.kill()
                self.popen.wait()
        if self.popen.stdin is not None:
            self.popen.stdin.close()


def stop_all(processes: Iterable[Process]) -> None:
    """Kills them all: a real server without a broker takes ten seconds to end politely."""
    for process in processes:
        if process.popen is not None:
            process.kill()
