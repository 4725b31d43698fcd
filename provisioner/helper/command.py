"""Whether the site's helper can be started at all, and if not why, in words for the operator."""

import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path


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
