"""Logging of the three programs: text on standard output, one JSON object a line in a file.

The fields ``component``, ``level``, ``msg`` and ``time`` and the level names are those of the Go programs, so that what
reads their logs reads ours. A log line is always one line: whatever a server or a helper put into it is escaped.
"""

import json
import logging
import os
import sys
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Self

from provisioner.errors import ConfigError, Fault
from provisioner.printable import escaped
from provisioner.secret import MASK, Secret

log = logging.getLogger(__name__)

LEVELS: dict[str, int] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "fatal": logging.CRITICAL,
}
"""The words of ``loglevel``."""

_WORDS = {**{number: word for word, number in LEVELS.items()}, logging.WARNING: "warning"}
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_FIXED = frozenset({"component", "level", "msg", "time", "trace"})
_SHORTEST_MASKED = 6
"""A secret shorter than this is not searched for in lines: masking it would garble them, and protect nothing."""


class Logs:
    """The logging of one process, while the context is open.

    Args:
        component: the program, as the field ``component`` tells it.
        level: a word of ``LEVELS``.
        debug: everything is logged, whatever ``level`` and ``set_level`` say (the flag ``--debug``).
        logfile: a path for JSON lines; ``""`` or ``stdout`` for text there, ``stderr``, or ``discard``.
        secrets: texts that are replaced by ``****`` wherever they turn up in a line, as a last safeguard.
        config_file: the file that an error names.

    Raises:
        ConfigError: the log file can't be opened.
    """

    def __init__(
        self,
        component: str,
        level: str = "info",
        logfile: str = "",
        *,
        debug: bool = False,
        secrets: Sequence[Secret] = (),
        config_file: str = "",
    ) -> None:
        self._forced = debug
        self._level = logging.DEBUG if debug else LEVELS[level]
        self._masked: set[str] = set()
        self.hide(*secrets)
        self._handler: logging.Handler
        if logfile in {"", "stdout", "stderr"}:
            self._handler = _Quiet(sys.stderr if logfile == "stderr" else sys.stdout)
            self._handler.setFormatter(_Text(self._masked))
        elif logfile == "discard":
            self._handler = logging.NullHandler()
        else:
            try:
                self._handler = _File(Path(logfile))
            except OSError as error:
                problem = f"the log file can't be opened: {error.strerror}"
                raise ConfigError([Fault(config_file, "logfile", problem, logfile)]) from None
            self._handler.setFormatter(_JSON(component, self._masked))

    def __enter__(self) -> Self:
        root, ours = logging.getLogger(), logging.getLogger("provisioner")
        self._before = root.level, ours.level
        # Libraries only warn: at debug, theirs would show whole messages, with the secrets in them.
        root.setLevel(max(self._level, logging.WARNING))
        ours.setLevel(self._level)
        root.addHandler(self._handler)
        return self

    def __exit__(self, *_: object) -> None:
        root, ours = logging.getLogger(), logging.getLogger("provisioner")
        root.removeHandler(self._handler)
        root.level, ours.level = self._before
        root.setLevel(root.level)
        self._handler.close()

    def set_level(self, level: str) -> None:
        """Changes the level of a running program; ``level`` is a word of ``LEVELS``."""
        self._level = logging.DEBUG if self._forced else LEVELS[level]
        logging.getLogger().setLevel(max(self._level, logging.WARNING))
        logging.getLogger("provisioner").setLevel(self._level)

    def hide(self, *secrets: Secret) -> None:
        """Masks these in all lines to come, beside those given before."""
        self._masked |= {s.reveal() for s in secrets if len(s.reveal()) >= _SHORTEST_MASKED}

    def reopen(self) -> None:
        """Opens the log file anew, after a log rotation moved it. The old file is kept when that fails."""
        if isinstance(self._handler, _File):
            self._handler.reopen()


class _Quiet(logging.StreamHandler[IO[str]]):
    """Writes what can be written. A full disk or a closed pipe is told once, and never stops the work."""

    told = False

    def format(self, record: logging.LogRecord) -> str:
        # A terminal or pipe that takes ASCII only gets escapes for the rest.
        encoding = getattr(self.stream, "encoding", None) or "utf-8"
        return super().format(record).encode(encoding, "backslashreplace").decode(encoding)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802, ARG002 - the library's name
        if self.told:
            return
        self.told = True
        error = sys.exc_info()[1]
        with suppress(OSError):
            print(f"The log can't be written: {error!r} (told once)", file=sys.stderr)


class _File(_Quiet):
    def __init__(self, path: Path) -> None:
        self._path = path
        super().__init__(self._opened())

    def _opened(self) -> IO[str]:
        # Not for the world: a log names servers, and tells what they said.
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        return os.fdopen(descriptor, "a", encoding="utf-8", errors="backslashreplace")

    def reopen(self) -> None:
        try:
            fresh = self._opened()
        except OSError as error:
            reason = error.strerror
            log.error("The log file %s can't be opened anew: %s", self._path, reason)  # noqa: TRY400 - no traceback
            return
        old = self.setStream(fresh)
        if old is not None:
            old.close()
        self.told = False

    def close(self) -> None:
        super().close()
        with suppress(OSError):  # what a full disk didn't take is still in its buffer
            self.stream.close()


class _Masked(logging.Formatter):
    def __init__(self, masked: AbstractSet[str]) -> None:
        super().__init__()
        self._masked = masked

    def _clean(self, text: str) -> str:
        for secret in self._masked:
            text = text.replace(secret, MASK)
        return text


class _Text(_Masked):
    """``2026-01-31T12:00:00.123Z INFO  message key=value``; a traceback follows on lines of its own, indented."""

    def format(self, record: logging.LogRecord) -> str:
        message = self._clean(record.getMessage())
        fields = (f" {k}={escaped(str(v))}" for k, v in _fields(record) if str(v) not in message)
        level = _level(record).removesuffix("ing").upper()
        line = f"{_time(record)} {level:<5} {escaped(message)}{self._clean(''.join(fields))}"
        if record.exc_info:
            trace = self._clean(self.formatException(record.exc_info))
            line += "".join(f"\n    {escaped(part)}" for part in trace.splitlines())
        return line


class _JSON(_Masked):
    def __init__(self, component: str, masked: AbstractSet[str]) -> None:
        super().__init__(masked)
        self._component = component

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "component": self._component,
            "level": _level(record),
            "msg": self._clean(record.getMessage()),
            "time": _time(record),
        }
        for key, value in _fields(record):
            known = value is None or isinstance(value, bool | int | float)
            line[key] = value if known else self._clean(str(value))
        if record.exc_info:
            line["trace"] = self._clean(self.formatException(record.exc_info))
        # Escaping all but ASCII also escapes what a terminal would obey.
        return json.dumps(line, ensure_ascii=True, separators=(",", ":")).replace("\x7f", "\\u007f")


def _level(record: logging.LogRecord) -> str:
    return _WORDS.get(record.levelno, record.levelname.lower())


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _fields(record: logging.LogRecord) -> list[tuple[str, Any]]:
    return [(k, v) for k, v in vars(record).items() if k not in _STANDARD and k not in _FIXED]
