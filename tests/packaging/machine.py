"""A machine to install on and to start units on: systemd as process 1, in namespaces, over a copy of this file system.

Nothing that is done on it stays. It shares the network with the test, so a server of the test's is reached on loopback.
It needs root and Linux's namespaces; ``why_not`` says what is missing.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from attrs import frozen

SCRIPT = Path(__file__).with_name("machine.sh")
GENEROUS = 90.0
"""Seconds within which a thing has to happen that takes one, on a busy machine."""


def _cgroups() -> Path | None:
    for line in Path("/proc/mounts").read_text().splitlines():
        _, where, kind, *_ = line.split()
        if kind == "cgroup2" and os.access(where, os.W_OK):
            return Path(where)
    return None


def why_not() -> str:
    """What a machine lacks here; ``""`` when there can be one."""
    if os.geteuid() != 0:
        return "a machine to install on needs root"
    missing = [word for word in ("unshare", "nsenter", "pivot_root", "systemctl", "dpkg") if not shutil.which(word)]
    if missing or not Path("/lib/systemd/systemd").exists():
        return f"a machine to install on needs systemd and {missing}"
    if _cgroups() is None:
        return "a machine to install on needs a cgroup2 file system that can be written to"
    done = subprocess.run(
        ["unshare", "--pid", "--mount", "--uts", "--ipc", "--cgroup", "--fork", "true"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return "" if done.returncode == 0 else f"no namespaces here: {done.stderr.strip()}"


@frozen
class Machine:
    """A machine that has booted."""

    pid: int
    shared: Path

    def run(self, *words: str | Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Runs a program on it, as root, in a bare environment."""
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/", "LC_ALL": "C.UTF-8", **(env or {})}
        return subprocess.run(
            ["nsenter", "--target", str(self.pid), "--all", *[str(word) for word in words]],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )

    def good(self, *words: str | Path) -> str:
        """Runs a program that has to end well; its standard output."""
        done = self.run(*words)
        assert done.returncode == 0, f"{words}: exit {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    def start(self, unit: str) -> None:
        """Starts a unit; returns when it is started."""
        done = self.run("systemctl", "start", unit)
        assert done.returncode == 0, self.run("systemctl", "status", unit).stdout + self.journal(unit)[-3000:]

    def show(self, unit: str, name: str) -> str:
        """One property of a unit."""
        return self.good("systemctl", "show", "--value", "--property", name, unit).strip()

    def journal(self, unit: str) -> str:
        """What a unit logged."""
        return self.run("journalctl", "--no-pager", "--unit", unit, "--output", "cat").stdout

    def until(self, condition: Callable[[], bool], what: str = "", unit: str = "") -> None:
        """Waits until something holds; tells the journal of a unit when it doesn't come to that."""
        end = time.monotonic() + GENEROUS
        while not condition():
            assert time.monotonic() < end, f"{what} never came\n{self.journal(unit) if unit else ''}"
            time.sleep(0.1)


@contextlib.contextmanager
def machine(layers: Path, shared: Path) -> Iterator[Machine]:
    """Boots one, and kills all that runs on it at the end.

    Args:
        layers: an empty directory of the machine's own.
        shared: a directory that it has in common with the test, under the same path.
    """
    above = _cgroups()
    assert above is not None
    group = above / f"packaging-test-{os.getpid()}-{time.monotonic_ns()}"
    group.mkdir()
    output = (layers.parent / f"{layers.name}.boot").open("w+")
    boot = 'echo $$ >"$1/cgroup.procs"; shift; exec "$@"'
    words = ["unshare", "--pid", "--mount", "--uts", "--ipc", "--cgroup", "--fork", "--kill-child"]
    starter = subprocess.Popen(
        ["sh", "-c", boot, "boot", group, *words, "sh", SCRIPT, layers, shared],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
    )
    try:
        yield _booted(starter, shared, Path(output.name))
    finally:
        # Process 1 of a namespace takes all its processes with it.
        for child in _children(starter.pid):
            os.kill(child, signal.SIGKILL)
        starter.kill()
        starter.wait(30)
        output.close()
        _remove(group)


def _children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def _booted(starter: subprocess.Popen[bytes], shared: Path, output: Path) -> Machine:
    end = time.monotonic() + GENEROUS
    state = ""
    while time.monotonic() < end and starter.poll() is None:
        for child in _children(starter.pid):
            if b"systemd" in Path(f"/proc/{child}/cmdline").read_bytes().partition(b"\0")[0]:
                found = Machine(child, shared)
                state = found.run("systemctl", "is-system-running").stdout.strip()
                if state in {"running", "degraded"}:
                    return found
        time.sleep(0.1)
    raise AssertionError(f"the machine didn't boot ({state}): {output.read_text()}")


def _remove(group: Path) -> None:
    end = time.monotonic() + GENEROUS
    for folder in [*sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True), group]:
        while True:
            try:
                folder.rmdir()
                break
            except OSError:
                if time.monotonic() > end:
                    return
                time.sleep(0.05)
