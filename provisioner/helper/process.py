"""One run of the site's helper: start it, feed it, read it to a limit, and leave nothing of it behind.

When the answer counts
    The direct child's exit decides, not the end of its pipes: a stranger who inherited them (a daemon in the
    background, one that left the group by ``setsid``) would hold a finished answer back. All that the child wrote is in
    the pipe when it has exited, so what is left is read without waiting, and our ends are closed.
"""

import errno
import logging
import signal
from collections.abc import Sequence

import trio
from attrs import frozen

from provisioner.command import check_command
from provisioner.errors import (
    HelperError,
    HelperFailed,
    HelperNotStarted,
    HelperSilent,
    HelperTooMuch,
    HelperTooSlow,
)
from provisioner.helper.child import MAX_STDOUT, Answer, Child, Tail, feed, read, read_rest

log = logging.getLogger(__name__)

LIMIT = 10.0
"""Seconds for a whole run, the start included (seed 2). No configuration key sets it."""


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

    def begun() -> None:
        pipes.start_soon(feed, child, payload)
        pipes.start_soon(read, child, child.stdout, answer)
        pipes.start_soon(read, child, child.stderr, tail)

    begin = trio.current_time()
    child, answer, tail = Child(), Answer(), Tail()
    in_time = False
    try:
        async with trio.open_nursery() as pipes:
            pipes.cancel_scope.deadline = begin + limit
            await child.run(argv, begun)
            in_time = True  # the direct child has exited and is reaped
            pipes.cancel_scope.cancel()
        if child.process is not None:
            read_rest(child.stdout, answer)
            read_rest(child.stderr, tail)
    finally:
        child.close()
    seconds = trio.current_time() - begin
    if child.refused is not None:
        raise not_started(argv, child.refused)
    code = child.process.returncode if in_time and child.process is not None else None
    stderr = tail.take()
    trouble = _verdict(argv[0], code, answer, limit, stderr)
    log_stderr(stderr, identity, trouble)
    if trouble is not None:
        raise trouble
    return HelperRun(stdout=bytes(answer.data), seconds=seconds, stderr="\n".join(stderr))


def not_started(argv: Sequence[str], error: Exception) -> HelperNotStarted:
    """The error for a helper whose start raised ``error``: rather what the operator can change than what was raised."""
    problem = check_command(argv)
    if problem is None:
        problem = (error.strerror if isinstance(error, OSError) else None) or str(error)
        if isinstance(error, OSError) and error.errno == errno.ENOEXEC:
            problem += "; a script needs a first line such as #!/bin/sh"
    return HelperNotStarted(f"{argv[0]} could not be started: {problem}")


def log_stderr(lines: Sequence[str], identity: str, trouble: HelperError | None) -> None:
    """Logs what a helper wrote on stderr, for the server it was run for; louder when it was in trouble."""
    level = logging.INFO if trouble is None else logging.WARNING
    for line in lines:
        log.log(level, "Helper for %s: %s", identity, line, extra={"identity": identity})


def _verdict(program: str, code: int | None, answer: Answer, limit: float, stderr: list[str]) -> HelperError | None:
    """What is wrong with a run, or None. ``code`` is None for a helper that was killed at its limit."""
    if answer.too_much:
        return complaint(HelperTooMuch, f"{program} wrote more than {MAX_STDOUT} bytes and was killed", stderr)
    if code is None:
        return complaint(HelperTooSlow, f"{program} had not finished after {limit:g} s and was killed", stderr)
    if code:
        return complaint(HelperFailed, f"{program} {how_it_ended(code)}", stderr)
    if not answer.data:
        return complaint(HelperSilent, f"{program} exited with code 0 and zero bytes received", stderr)
    return None


def complaint(kind: type[HelperError], problem: str, stderr: Sequence[str]) -> HelperError:
    """An error about a helper, with the last thing that it said of it."""
    last = f"; last on stderr: {stderr[-1]}" if stderr else ""
    return kind(problem + last, stderr="\n".join(stderr))


def how_it_ended(code: int) -> str:
    """An exit code, or the signal -``code``, in words."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was ended by signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"was ended by signal {-code}"
