"""One run of the site's helper: start it, feed it, read it to a limit, and leave nothing of it behind.

How it ends, on every path
    The child leads a session and a process group of its own. When it exits, when it has said too much, when its time is
    over and when we are cancelled, the whole group gets SIGKILL: no SIGTERM first, for then "10 seconds" would be 15.
    ``trio.run_process`` starts the child and reaps it; its ``deliver_cancel`` kills the group, and the group is killed
    once more at the very end, for ``deliver_cancel`` isn't called for a child that has already exited.

When the answer counts
    The direct child's exit decides, not the end of its pipes: a stranger who inherited them (a daemon in the
    background, one that left the group by ``setsid``) would hold a finished answer back. All that the child wrote is in
    the pipe when it has exited, so what is left is read without waiting, and our ends are closed.

What is out of reach
    A process that leaves the group by ``setsid`` lives on (a cgroup catches it: systemd's ``KillMode=mixed``), and so
    does one that we have no right to kill (a set-uid helper). A helper on a file system that hangs is started by a call
    that nobody can interrupt: keep it on a local disk.

``trio.run_process`` spawns in a worker thread out of Trio's default 40. A spawn takes about a millisecond, so they
suffice for any number of workers as long as nobody blocks them with long work: that takes a limiter of its own.
"""

import errno
import logging
import os
import shutil
import signal
import stat
from collections.abc import Sequence, Sized
from contextlib import suppress
from functools import partial
from pathlib import Path
from subprocess import PIPE

import trio
from attrs import frozen

from provisioner.errors import (
    HelperError,
    HelperFailed,
    HelperNotStarted,
    HelperSilent,
    HelperTooMuch,
    HelperTooSlow,
)
from provisioner.printable import escaped

log = logging.getLogger(__name__)

LIMIT = 10.0
"""Seconds for a whole run, the start included (seed 2). No configuration key sets it."""

MAX_STDOUT = 1 << 20
"""Bytes of an answer. The largest that a server could accept is under 100 KB (wire-protocol 6.5), policies aside."""

STDERR_TAIL = 8 << 10
"""Bytes of stderr that are kept: the last ones, where a traceback says what it was about."""

STDERR_LINES = 20
"""Lines of stderr that are logged for one run."""

STDERR_LINE = 500
"""Characters of a line of stderr that are logged."""

_CHUNK = 64 << 10  # a Linux pipe's default capacity: one read empties it
_PIDFD_SIGNAL_PROCESS_GROUP = 4  # Linux 6.9; not yet a name in Python's signal module


@frozen
class HelperRun:
    """What a helper that ended well wrote.

    Attributes:
        stdout: its answer, 1 to ``MAX_STDOUT`` bytes. It may hold secrets: never log it.
        seconds: from before the start until its exit.
        stderr: the printable tail of its stderr, lines separated by line feeds; it has been logged.
    """

    stdout: bytes
    seconds: float
    stderr: str = ""

    def __repr__(self) -> str:
        return f"HelperRun({len(self.stdout)} bytes, {self.seconds:.3f} s)"


def check_command(argv: Sequence[str]) -> str | None:
    """Looks whether a helper could be started at all, for a start-up error rather than one for each server.

    Args:
        argv: program and arguments. A program without a slash is looked for in ``PATH``, as the reference does.

    Returns:
        What is wrong, in words for the operator, or None.
    """
    program = argv[0] if "/" in argv[0] else shutil.which(argv[0])
    if program is None:
        return f"there is no program {argv[0]!r} in PATH; write the helper's whole path"
    if not program.startswith("/"):
        return f"{program!r} is a relative path and would depend on where the service is started; write the whole path"
    return _check_file(Path(program))


def _check_file(path: Path) -> str | None:
    name = repr(str(path))
    try:
        mode = path.stat().st_mode
    except OSError as error:
        return f"{name} can't be looked at: {error.strerror}"
    if stat.S_ISDIR(mode):
        return f"{name} is a directory"
    if not stat.S_ISREG(mode):
        return f"{name} is not a regular file"
    if not os.access(path, os.X_OK):
        return f"{name} is not executable for this user; try chmod +x"
    return _check_first_line(path)


def _check_first_line(path: Path) -> str | None:
    name = repr(str(path))
    try:
        with path.open("rb") as file:
            first = file.read(256)
    except OSError:
        return None  # a binary may be executable and not readable
    if not first:
        return f"{name} is empty"
    if first.startswith(b"#!"):
        # As the kernel splits it: only blanks and tabs, so that a carriage return belongs to the interpreter's name.
        words = first[2:].split(b"\n")[0].replace(b"\t", b" ").split(b" ")
        interpreter = os.fsdecode(next(filter(None, words), b""))
        if not os.access(interpreter, os.X_OK):
            return f"{name} names in its first line the interpreter {interpreter!r}, which can't be run"
    return None


class _Group:
    """The process group of one child, to be killed any number of times and never a stranger's.

    A number can be reused once its process is reaped and its group is empty. A pidfd can't: it keeps meaning the same
    group. Where the kernel can't signal a group by pidfd (before Linux 6.9) the number is used: a group that has anyone
    left to kill still owns its number.
    """

    def __init__(self, pid: int) -> None:
        if pid <= 1 or pid == os.getpgrp():
            raise ValueError(f"refusing to treat {pid} as a helper's process group")
        self.pid = pid
        self._fd: int | None = None
        with suppress(OSError):
            self._fd = os.pidfd_open(pid)

    def kill(self) -> None:
        # ESRCH: nobody is left. EPERM: the helper changed its user and can't be killed by ours.
        with suppress(ProcessLookupError, PermissionError):
            if self._fd is not None:
                try:
                    signal.pidfd_send_signal(self._fd, signal.SIGKILL, None, _PIDFD_SIGNAL_PROCESS_GROUP)
                except OSError as error:
                    if error.errno != errno.EINVAL:
                        raise
                else:
                    return
            os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)


class _Child(trio.TaskStatus[trio.Process]):
    """Takes hold of the child in the same breath in which ``trio.run_process`` has started it.

    It stands in for the ``task_status``: even when the start was cancelled meanwhile, the child and its pipes are ours
    to close.
    """

    process: trio.Process | None = None
    group: _Group | None = None

    async def run(self, argv: Sequence[str], *, task_status: trio.TaskStatus[None]) -> None:
        self._status = task_status
        await trio.run_process(
            argv,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            check=False,
            start_new_session=True,
            deliver_cancel=self._deliver_cancel,
            task_status=self,
        )

    def started(self, value: trio.Process | None = None) -> None:
        assert value is not None
        self.process = value
        self.group = _Group(value.pid)
        self._status.started()

    async def _deliver_cancel(self, _: trio.Process) -> None:
        self.kill()

    def kill(self) -> None:
        if self.group is not None:
            self.group.kill()

    def close(self) -> None:
        """Kills what is left of the group and closes all that we hold of it."""
        if self.group is not None:
            self.group.kill()
            self.group.close()
        if self.process is not None:
            for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
                _fd_stream(stream).close()


def _fd_stream(stream: trio.abc.AsyncResource | None) -> trio.lowlevel.FdStream:
    assert isinstance(stream, trio.lowlevel.FdStream)
    return stream


class _Answer:
    """Standard output: all of it, up to the limit."""

    def __init__(self) -> None:
        self.data = bytearray()

    def add(self, chunk: bytes) -> bool:
        """Takes one chunk; False when it was too much."""
        self.data += chunk
        return len(self.data) <= MAX_STDOUT


class _Tail:
    """Standard error: the end of it."""

    def __init__(self) -> None:
        self.data = bytearray()

    def add(self, chunk: bytes) -> bool:
        self.data += chunk
        del self.data[:-STDERR_TAIL]
        return True

    def lines(self) -> list[str]:
        lines = self.data.decode(errors="replace").splitlines()
        return [escaped(line, STDERR_LINE) for line in lines if line.strip()][-STDERR_LINES:]


async def _feed(stream: trio.lowlevel.FdStream, payload: bytes) -> None:
    with suppress(trio.BrokenResourceError):  # it may answer without reading all, or anything
        await stream.send_all(payload)
    stream.close()


async def _read(stream: trio.lowlevel.FdStream, sink: _Answer | _Tail, child: _Child) -> None:
    while chunk := await stream.receive_some(_CHUNK):
        if not sink.add(chunk):
            child.kill()
            return


def _read_rest(stream: trio.lowlevel.FdStream, sink: _Answer | _Tail) -> None:
    """Reads what is in the pipe now, without waiting; a stranger who goes on writing is left at a bound."""
    taken = 0
    with suppress(BlockingIOError):
        while taken <= MAX_STDOUT and (chunk := os.read(stream.fileno(), _CHUNK)):
            taken += len(chunk)
            sink.add(chunk)


async def run_helper(argv: Sequence[str], payload: bytes, *, identity: str = "", limit: float = LIMIT) -> HelperRun:
    """Runs the site's helper once, for one server.

    The helper inherits our environment and working directory and gets nothing secret in either; it is never run by a
    shell. Its stderr is logged, line by line, with the server's identity.

    Args:
        argv: program and arguments.
        payload: what it reads on standard input, after which it sees the end of it.
        identity: the server it is run for; for the log.
        limit: seconds for the whole run, the start included.

    Returns:
        What it wrote. Nothing of the helper's process group is running any more.

    Raises:
        HelperNotStarted: it could not be started.
        HelperTooMuch: it wrote more than ``MAX_STDOUT`` bytes and was killed.
        HelperTooSlow: it had not exited at the limit and was killed.
        HelperFailed: it exited with a code other than 0, or by a signal, whatever it had written.
        HelperSilent: it exited well and wrote nothing.
    """
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        raise HelperNotStarted(f"{argv[0]} was not started: SIGCHLD is ignored here, so its exit code would be lost")
    begin = trio.current_time()
    child, answer, tail = _Child(), _Answer(), _Tail()
    refused: Exception | None = None
    try:
        with trio.move_on_after(limit) as clock:
            async with trio.open_nursery() as pipes:
                async with trio.open_nursery() as life:
                    try:
                        await life.start(partial(child.run, argv))
                    except (OSError, ValueError) as error:
                        refused = error
                    else:
                        assert child.process is not None
                        pipes.start_soon(_feed, _fd_stream(child.process.stdin), payload)
                        pipes.start_soon(_read, _fd_stream(child.process.stdout), answer, child)
                        pipes.start_soon(_read, _fd_stream(child.process.stderr), tail, child)
                # The direct child has exited and is reaped.
                pipes.cancel_scope.cancel()
        if child.process is not None:
            _read_rest(_fd_stream(child.process.stdout), answer)
            _read_rest(_fd_stream(child.process.stderr), tail)
    finally:
        child.close()
    seconds = trio.current_time() - begin
    lines = tail.lines()
    if refused is not None:
        raise _not_started(argv, refused)
    code = None if clock.cancelled_caught or child.process is None else child.process.returncode
    trouble = _verdict(argv[0], code, answer.data, limit, lines)
    level = logging.INFO if trouble is None else logging.WARNING
    for line in lines:
        log.log(level, "Helper for %s: %s", identity, line, extra={"identity": identity})
    if trouble is not None:
        raise trouble
    return HelperRun(stdout=bytes(answer.data), seconds=seconds, stderr="\n".join(lines))


def _not_started(argv: Sequence[str], error: Exception) -> HelperNotStarted:
    problem = check_command(argv)
    if problem is None:
        problem = (error.strerror if isinstance(error, OSError) else None) or str(error)
        if isinstance(error, OSError) and error.errno == errno.ENOEXEC:
            problem += "; a script needs a first line such as #!/bin/sh"
    return HelperNotStarted(f"{argv[0]} could not be started: {problem}")


def _verdict(program: str, code: int | None, answer: Sized, limit: float, lines: list[str]) -> HelperError | None:
    """What is wrong with a run, or None. ``code`` is None for a helper that was killed at its limit."""
    stderr = "\n".join(lines)
    last = f"; last on stderr: {lines[-1]}" if lines else ""
    if len(answer) > MAX_STDOUT:
        return HelperTooMuch(f"{program} wrote more than {MAX_STDOUT} bytes and was killed{last}", stderr=stderr)
    if code is None:
        return HelperTooSlow(f"{program} had not finished after {limit:g} s and was killed{last}", stderr=stderr)
    if code > 0:
        return HelperFailed(f"{program} exited with code {code}{last}", stderr=stderr)
    if code < 0:
        return HelperFailed(f"{program} was ended by signal {_signal_name(-code)}{last}", stderr=stderr)
    if not len(answer):
        return HelperSilent(f"{program} exited with code 0 and zero bytes received{last}", stderr=stderr)
    return None


def _signal_name(number: int) -> str:
    try:
        return f"{number} ({signal.Signals(number).name})"
    except ValueError:
        return str(number)
