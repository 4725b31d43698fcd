"""The PID file: written at start, removed at the end."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from provisioner.errors import ConfigError, Fault


@contextmanager
def pid_file(path: Path | None, *, flag: str = "--pid") -> Iterator[None]:
    """Writes our process id to ``path`` and removes the file at the end, if it is still ours by then.

    Args:
        path: where; None for no PID file. A file that is there already is overwritten, a symbolic link is refused.
        flag: the command line flag that an error names.

    Raises:
        ConfigError: the file can't be written.
    """
    if path is None:
        yield
        return
    ours = f"{os.getpid()}\n"
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags, 0o644), "w", encoding="ascii") as file:
            file.write(ours)
    except OSError as error:
        raise ConfigError([Fault(str(path), flag, f"the PID file can't be written: {error.strerror}")]) from None
    try:
        yield
    finally:
        try:
            if path.read_text(encoding="ascii", errors="replace") == ours:
                path.unlink()
        except OSError:
            pass  # somebody else removed it, or its directory
