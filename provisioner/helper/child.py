"""A helper's process as we hold it: started by ``trio.run_process`` in a group of its own, read within bounds, killed.

How it ends, on every path
    The child leads a session and a process group of its own. When it exits, when it has said too much, when its time is
    over and when we are cancelled, the whole group gets SIGKILL: no SIGTERM first, for then "10 seconds" would be 15.
    ``trio.run_process`` starts the child and reaps it; its ``deliver_cancel`` kills the group, and the group is killed
    once more at the very end, for ``deliver_cancel`` isn't called for a child that has already exited.

What is out of reach
    A process that leaves the group by ``setsid`` lives on (a cgroup catches it: systemd's ``KillMode=mixed``), and so
    does one that we have no right to kill (a set-uid helper). A helper on a file system that hangs is started by a call
    that nobody can interrupt: keep it on a local disk.

``trio.run_process`` spawns in a worker thread out of Trio's default 40. A spawn takes about a millisecond, so they
suffice for any number of workers as long as nobody blocks them with long work: that takes a limiter of its own.
"""

import errno
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from subprocess import PIPE

import trio

from provisioner.printable import escaped

MAX_STDOUT = 1 << 20
"""Bytes of an answer. The largest that a server could accept is under 100 KB (wire-protocol 6.5), policies aside."""

STDERR_TAIL = 8 << 10
"""Bytes of stderr that are kept: the last ones, where a traceback says what it was about."""

STDERR_LINES = 20
"""Lines of stderr that are logged for one run."""

STDERR_LINE = 500
"""Characters of a line of stderr that are logged."""

CHUNK = 64 << 10  # a Linux pipe's default capacity: one read empties it
_PIDFD_SIGNAL_PROCESS_GROUP = 4  # Linux 6.9; not yet a name in Python's signal module


class Group:
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
        """Sends SIGKILL to all of it; nothing happens when nobody is left."""
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
        """Lets go of it."""
        if self._fd is not None:
            os.close(self._fd)


class Child(trio.TaskStatus[trio.Process]):
    """One child and what we hold of it.

    It stands in for the ``task_status`` of ``trio.run_process``, to take hold of the process in the same breath in
    which it was started: before anybody can have reaped it, and even when the start was cancelled meanwhile.

    Attributes:
        process: None until it is started.
        refused: why it could not be started.
        stdin: our end of its standard input; the other two likewise.
    """

    process: trio.Process | None = None
    refused: Exception | None = None
    stdin: trio.lowlevel.FdStream
    stdout: trio.lowlevel.FdStream
    stderr: trio.lowlevel.FdStream
    _group: Group | None = None

    async def run(self, argv: Sequence[str], begun: Callable[[], object]) -> None:
        """Starts it and returns when the child itself has ended and is reaped; kills its group when cancelled.

        It inherits our environment and working directory. If it can't be started, ``refused`` says why.

        Args:
            argv: program and arguments.
            begun: called once it has been started, in the same breath.
        """
        if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
            self.refused = ValueError("SIGCHLD is ignored in this process, so that its exit code would be lost")
            return
        self._begun = begun
        try:
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
        except (OSError, ValueError) as error:
            self.refused = error

    def started(self, value: trio.Process | None = None) -> None:
        """Called by ``trio.run_process``."""
        assert value is not None
        self.process = value
        self._group = Group(value.pid)
        self.stdin, self.stdout, self.stderr = map(_fd_stream, (value.stdin, value.stdout, value.stderr))
        self._begun()

    async def _deliver_cancel(self, _: trio.Process) -> None:
        self.kill()

    def kill(self) -> None:
        """Kills its whole group."""
        if self._group is not None:
            self._group.kill()

    def close(self) -> None:
        """Kills what is left of its group and closes all that we hold of it."""
        if self._group is not None:
            self._group.kill()
            self._group.close()
            for stream in (self.stdin, self.stdout, self.stderr):
                stream.close()


def _fd_stream(stream: trio.abc.AsyncResource | None) -> trio.lowlevel.FdStream:
    assert isinstance(stream, trio.lowlevel.FdStream)
    return stream


class Answer:
    """Standard output: all of it, up to the limit."""

    def __init__(self) -> None:
        self.data = bytearray()

    @property
    def too_much(self) -> bool:
        """Whether it is over the limit."""
        return len(self.data) > MAX_STDOUT

    def add(self, chunk: bytes) -> None:
        """Takes one chunk."""
        self.data += chunk


class Tail:
    """Standard error: the end of it."""

    too_much = False

    def __init__(self) -> None:
        self.data = bytearray()

    def add(self, chunk: bytes) -> None:
        """Takes one chunk and lets go of the oldest."""
        self.data += chunk
        del self.data[:-STDERR_TAIL]

    def take(self) -> list[str]:
        """The last lines, printable; they are taken out."""
        lines = self.data.decode(errors="replace").splitlines()
        self.data.clear()
        return [escaped(line, STDERR_LINE) for line in lines if line.strip()][-STDERR_LINES:]


async def feed(child: Child, payload: bytes) -> None:
    """Writes all of its standard input, then the end of it."""
    with suppress(trio.BrokenResourceError):  # it may answer without reading all, or anything
        await child.stdin.send_all(payload)
    child.stdin.close()


async def read(child: Child, stream: trio.lowlevel.FdStream, sink: Answer | Tail) -> None:
    """Reads one of its outputs to the end; kills it when that is too much."""
    while chunk := await stream.receive_some(CHUNK):
        sink.add(chunk)
        if sink.too_much:
            child.kill()
            return


def read_rest(stream: trio.lowlevel.FdStream, sink: Answer | Tail) -> None:
    """Reads what is in the pipe now, without waiting; a stranger who goes on writing is left at a bound."""
    taken = 0
    with suppress(BlockingIOError):
        while taken <= MAX_STDOUT and (chunk := os.read(stream.fileno(), CHUNK)):
            taken += len(chunk)
            sink.add(chunk)
