"""Keeps what the helper was told, one file a server, to try a helper on (``record_inputs``, ``--record``).

The provisioning token and the broker password among the claims are masked. A file that can't be written is told, and
stops nothing.
"""

import hashlib
import logging
import os
from pathlib import Path
from typing import Any

from provisioner import strictjson
from provisioner.choria.encoding import dumps
from provisioner.secret import MASK

log = logging.getLogger(__name__)

MAX_FILES = 10_000
"""Files in the directory; beyond it known servers are recorded anew, and no others."""

SECRET_CLAIMS = ("cht", "chpwd")
"""Claims of provisioning.jwt that are masked: the provisioning token and the broker's password."""

_LONGEST_NAME = 200


class Recorder:
    """Writes helper inputs below a directory that exists."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._told = ""

    def __call__(self, identity: str, payload: bytes) -> None:
        """Records one input; an older one of the same server is replaced."""
        path = self._directory / file_name(identity)
        try:
            if not path.exists() and sum(1 for _ in os.scandir(self._directory)) >= MAX_FILES:
                self._tell(f"it has {MAX_FILES} files")
                return
            _replace(path, masked(payload))
        except OSError as error:
            self._tell(error.strerror or str(error))
        else:
            self._told = ""

    def _tell(self, problem: str) -> None:
        if problem != self._told:
            self._told = problem
            log.warning("Helper inputs are not recorded in %s: %s", self._directory, problem)


def file_name(identity: str) -> str:
    """The file of one server; ``identity`` has been checked and holds no slash that matters."""
    name = identity.replace("/", "_")
    if len(name) > _LONGEST_NAME or name != identity:
        name = f"{name[:_LONGEST_NAME]}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"
    return f"{name}.json"


def masked(payload: bytes) -> bytes:
    """The same input without secrets, in the same form."""
    told: dict[str, Any] = strictjson.loads(payload)
    claims = told.get("jwt")
    if isinstance(claims, dict):
        told["jwt"] = {key: MASK if key in SECRET_CLAIMS and value else value for key, value in claims.items()}
    return dumps(told).encode()


def _replace(path: Path, data: bytes) -> None:
    fresh = path.with_name(f".{path.name}.new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    fresh.replace(path)
