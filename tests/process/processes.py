"""What the process tests know of processes: who is in a session, who is a zombie, how many descriptors are open."""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import trio


def _stat(pid: int) -> tuple[str, int, int]:
    """State, parent and session of one process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return fields[0], int(fields[1]), int(fields[3])


def _all() -> dict[int, tuple[str, int, int]]:
    found = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with suppress(FileNotFoundError, ProcessLookupError):
                found[int(path.name)] = _stat(int(path.name))
    return found


def zombies() -> list[int]:
    """Our children that have died and that nobody has reaped."""
    return [pid for pid, (state, parent, _) in _all().items() if state == "Z" and parent == os.getpid()]


STRANGERS: set[int] = set()
"""Children that were there before the test: servers that fixtures of a whole session keep."""


def children() -> list[int]:
    """Our children, dead or alive, that the test did not find when it began."""
    return [pid for pid, (_, parent, _) in _all().items() if parent == os.getpid() and pid not in STRANGERS]


def members(session: int) -> list[int]:
    """The living processes of a session."""
    return [pid for pid, (state, _, sid) in _all().items() if sid == session and state not in "ZX"]


def descriptors() -> int:
    """How many file descriptors we hold."""
    return len(list(Path("/proc/self/fd").iterdir()))


async def gone(pids: Sequence[int], within: float = 10) -> None:
    """Returns when all these processes are dead; fails when that takes longer than ``within`` seconds."""
    with trio.fail_after(within):
        for pid in pids:
            try:
                fd = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            try:
                await trio.lowlevel.wait_readable(fd)
            finally:
                os.close(fd)
