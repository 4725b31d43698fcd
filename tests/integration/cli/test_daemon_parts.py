"""PID file, signals and the service manager's socket, each against the real thing."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from provisioner.cli.pidfile import pid_file
from provisioner.cli.sdnotify import Notifier
from provisioner.cli.signals import handle_signals
from provisioner.errors import ConfigError

# --- PID file ------------------------------------------------------------------------------------------------------


def test_the_pid_is_written_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    path.write_text("99999999999999 stale and longer\n")
    with pid_file(path):
        assert path.read_text() == f"{os.getpid()}\n"
    assert not path.exists()


def test_no_pid_file_is_no_file(tmp_path: Path) -> None:
    with pid_file(None):
        assert list(tmp_path.iterdir()) == []


def test_the_pid_is_removed_after_an_error_too(tmp_path: Path) -> None:
    with pytest.raises(KeyError), pid_file(tmp_path / "pid"):
        raise KeyError
    assert not (tmp_path / "pid").exists()


@pytest.mark.parametrize("meanwhile", [lambda path: path.write_text("1\n"), Path.unlink])
def test_a_pid_file_that_is_no_longer_ours_is_left(meanwhile: Callable[[Path], object], tmp_path: Path) -> None:
    path = tmp_path / "pid"
    with pid_file(path):
        meanwhile(path)
        left = path.exists()
    assert path.exists() == left


def test_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    target, path = tmp_path / "passwd", tmp_path / "pid"
    target.write_text("root")
    path.symlink_to(target)
    with pytest.raises(ConfigError, match="--pid: the PID file can't be written"), pid_file(path):
        pass
    assert target.read_text() == "root"


def test_a_pid_file_that_cannot_be_written_names_the_flag(tmp_path: Path) -> None:
    path = tmp_path / "no" / "pid"
    with pytest.raises(ConfigError) as caught, pid_file(path):
        pass
    assert str(caught.value) == f"{path}: --pid: the PID file can't be written: No such file or directory"


# --- signals -------------------------------------------------------------------------------------------------------


class Calls:
    """Remembers what signals called, and lets a test wait for it."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self._changed = trio.Event()

    def note(self, what: str) -> Callable[[], None]:
        def noted() -> None:
            self.told.append(what)
            self._changed.set()
            self._changed = trio.Event()

        return noted

    async def until(self, count: int) -> list[str]:
        with trio.fail_after(30):
            while len(self.told) < count:
                await self._changed.wait()
        return self.told


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_first_signal_stops_and_the_second_aborts(number: signal.Signals) -> None:
    calls = Calls()
    before = signal.getsignal(number)
    async with trio.open_nursery() as nursery:

        async def handle(task_status: trio.TaskStatus[None]) -> None:
            await handle_signals(
                stop=calls.note("stop"),
                abort=calls.note("abort"),
                hangup=calls.note("hangup"),
                task_status=task_status,
            )

        await nursery.start(handle)
        os.kill(os.getpid(), signal.SIGHUP)
        assert await calls.until(1) == ["hangup"]
        os.kill(os.getpid(), number)
        assert await calls.until(2) == ["hangup", "stop"]
        os.kill(os.getpid(), signal.SIGHUP)
        assert await calls.until(3) == ["hangup", "stop", "hangup"]
        os.kill(os.getpid(), number)
        assert await calls.until(4) == ["hangup", "stop", "hangup", "abort"]
    # The task is over, and a third signal has its default effect again.
    assert signal.getsignal(number) == before


DEAF = """
import signal, trio
from provisioner.cli.signals import handle_signals

async def main():
    with trio.CancelScope(shield=True):
        async with trio.open_nursery() as nursery:
            async def handle(task_status):
                say = lambda word: lambda: print(word, flush=True)
                await handle_signals(stop=say("stop"), abort=say("abort"), hangup=say("hup"), task_status=task_status)
            await nursery.start(handle)
            print("ready", flush=True)
            await trio.sleep_forever()
trio.run(main)
"""


def test_a_third_signal_ends_a_process_that_is_deaf_to_the_rest() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", DEAF],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    ) as child:
        assert child.stdout is not None
        try:
            for word in ("ready", "stop", "abort"):
                assert child.stdout.readline() == word + "\n"
                child.send_signal(signal.SIGTERM)
            assert child.wait(30) == -signal.SIGTERM
        finally:
            child.kill()


# --- the service manager -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_each_notification(kind: str, tmp_path: Path) -> None:
    address = str(tmp_path / "notify") if kind == "path" else f"@provisioner-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + address[1:] if kind == "abstract" else address)
        manager.settimeout(30)
        notifier = Notifier(address, watchdog=10.0)
        notifier.ready("standing by,\nconnected")
        notifier.status("leader")
        notifier.alive()
        notifier.reloading()
        notifier.stopping()
        told = [manager.recv(4096).decode() for _ in range(5)]
    assert told[0] == "READY=1\nSTATUS=standing by, connected"
    assert told[1] == "STATUS=leader"
    assert told[2] == "WATCHDOG=1"
    assert told[3].startswith("RELOADING=1\nMONOTONIC_USEC=")
    assert int(told[3].rpartition("=")[2]) > 0
    assert told[4] == "STOPPING=1"
    assert notifier.watchdog_interval == 5.0


@pytest.mark.parametrize("address", ["", "/nowhere/notify", "@nobody-listens-here"])
def test_a_notification_that_cannot_be_delivered_is_dropped(address: str) -> None:
    Notifier(address).ready()


@pytest.mark.parametrize(
    ("variables", "interval"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_environment_is_read_and_not_handed_on(variables: dict[str, str], interval: float | None) -> None:
    environment = {"PATH": "/bin", "NOTIFY_SOCKET": "/nowhere", **variables}
    assert Notifier.from_environment(environment).watchdog_interval == interval
    assert environment == {"PATH": "/bin"}
