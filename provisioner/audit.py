"""The audit trail: one JSON line for each outcome, with what was given to the server and by whom. Holds no secret.

What a server or a helper wrote in words of its own is not in it, only our words, digests, ids and times. A line that
can't be written is counted and told; it never stops the work.
"""

import errno
import hashlib
import logging
import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from provisioner import strictjson
from provisioner.cycle.steps import Cycle
from provisioner.errors import ConfigError, Fault
from provisioner.fleet.crew import Ended
from provisioner.trust.inspection import certificate_facts
from provisioner.version import __version__

log = logging.getLogger(__name__)

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class AuditTrail:
    """An open audit trail.

    Args:
        path: the file; lines are appended to it.
        provisioner: our own identity.
        site: the configured site.
        config_file: the file that an error names.

    Raises:
        ConfigError: the file can't be opened. A full disk is no such error: it is told, and may get room.
    """

    def __init__(self, path: Path, *, provisioner: str, site: str, config_file: str = "") -> None:
        self.lost = 0
        self._path = path
        self._provisioner = provisioner
        self._site = site
        self._ragged = False
        self._fd: int | None = None
        try:
            self._fd = self._opened()
        except OSError as error:
            if error.errno not in _FULL:
                problem = f"can't be opened: {error.strerror}"
                raise ConfigError([Fault(config_file, "audit_log", problem, str(path))]) from None

    def _opened(self) -> int:
        # O_NONBLOCK: should somebody put a pipe there, a reader who stops reading must not stop us.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        return os.open(self._path, flags, 0o640)

    def __call__(self, ended: Ended) -> None:
        """Writes one outcome; for ``Crew``'s ``on_end``."""
        line = strictjson.dumps(self.entry(ended)).encode() + b"\n"
        try:
            self._write(line)
        except OSError as error:
            self.lost += 1
            if self.lost == 1:
                reason = error.strerror
                log.error("The audit trail %s can't be written, lines are lost: %s", self._path, reason)  # noqa: TRY400
        else:
            if self.lost:
                log.warning("The audit trail %s is written again, %d lines were lost", self._path, self.lost)
                self.lost = 0

    def _write(self, line: bytes) -> None:
        if self._fd is None:
            self._fd = self._opened()
        if self._ragged:
            line = b"\n" + line  # the disk was full in the middle of a line
        written = os.write(self._fd, line)
        self._ragged = written < len(line)
        if self._ragged:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def entry(self, ended: Ended) -> dict[str, Any]:
        """One outcome as it is written."""
        finished, cycle = ended.finished, ended.cycle
        return {
            "identity": finished.identity,
            "outcome": finished.outcome,
            "step": finished.step,
            "reason": finished.reason,
            "attempt": finished.attempt,
            "started": _time(ended.started_at),
            "ended": _time(finished.at),
            "seconds": round(finished.seconds, 3),
            "helper_seconds": None if cycle is None or cycle.helper_seconds is None else round(cycle.helper_seconds, 3),
            "request_ids": list(ended.request_ids),
            **_given(cycle),
            "provisioner": self._provisioner,
            "site": self._site,
            "version": __version__,
        }

    def reopen(self) -> None:
        """Opens the file anew, after a rotation moved it. The old one is kept when that fails."""
        try:
            fresh = self._opened()
        except OSError as error:
            reason = error.strerror
            log.error("The audit trail %s can't be opened anew: %s", self._path, reason)  # noqa: TRY400
            return
        self.close()
        self._fd, self._ragged = fresh, False

    def close(self) -> None:
        """Closes the file."""
        if self._fd is not None:
            with suppress(OSError):
                os.close(self._fd)
            self._fd = None


def _given(cycle: Cycle | None) -> dict[str, Any]:
    """What ``configure`` carried, as digests and ids; None for what it had none of, or when nothing was sent."""
    delivered = None if cycle is None else cycle.delivered
    data = {} if delivered is None else delivered.data
    issued = None if delivered is None else delivered.issued
    key = None if cycle is None or cycle.facts.ed25519 is None else cycle.facts.ed25519["public_key"]
    return {
        "configuration_sha256": hashlib.sha256(data["config"].encode()).hexdigest() if data else None,
        "key_sha256": hashlib.sha256(bytes.fromhex(key)).hexdigest() if key else None,
        "certificate_serial": _serial(data.get("certificate", "")),
        "jti": issued.jti if issued else None,
        "expires": _time(issued.expires) if issued else None,
    }


def _serial(pem: str) -> str | None:
    if not pem:
        return None
    try:
        return certificate_facts(pem).serial
    except ValueError:
        return "unreadable"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
