"""What the operator's commands write: to a terminal within its width, to a pipe one line a thing, never half."""

import os
import shutil
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper


@contextmanager
def printing() -> Iterator[None]:
    """Around all that prints: a reader who has seen enough (``| head``) and a terminal of ASCII only are no errors."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # What is still in the buffer would fail once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def terminal_width() -> int | None:
    """Columns of the terminal that standard output is; None when it is none, and lines must not be broken."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def wrapped(text: str, indent: int, width: int | None) -> str:
    """A text to stand behind ``indent`` columns, its further lines indented alike."""
    if width is None or indent + len(text) <= width:
        return text
    lines = textwrap.wrap(text, max(width - indent, 20), break_on_hyphens=False)
    return f"\n{' ' * indent}".join(lines)


def age(seconds: float) -> str:
    """A span of time in at most seven characters: ``0.3s``, ``42s``, ``3m05s``, ``2h10m``, ``5d02h``."""
    whole = int(seconds)
    if seconds < 10:
        return f"{max(seconds, 0):.1f}s"
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"
