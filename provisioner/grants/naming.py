"""What a consumer's login, its kept role and a database's groups are called, within PostgreSQL's 63 bytes.

PostgreSQL cuts a longer name in silence, and two names with the same first 63 bytes are then the same role
(mesh.md A5.6). So every name that this program makes is bounded here, and never parsed back: who a role belongs to is
said by its mark (``mark.py``).
"""

import hashlib
import re

MAX_BYTES = 63
"""PostgreSQL's NAMEDATALEN - 1. A server built with another value is not supported."""

_HASH_DIGITS = 16
_PREFIX_BYTES = MAX_BYTES - 1 - _HASH_DIGITS
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_RESERVED_ROLES = frozenset({"public", "none", "current_role", "current_user", "session_user", "user"})
_RESERVED_DATABASES = frozenset({"postgres", "template0", "template1"})


def name_fault(text: object, *, dots: bool) -> str | None:
    """What is wrong with a node's or a module's name (mesh.md A5.1), or None.

    Args:
        text: the value as decoded from JSON.
        dots: whether a dot is allowed: in a node it is, in a module it isn't, so that ``<node>.<module>`` is unique.
    """
    if not isinstance(text, str):
        return "must be text"
    faults = {
        "is empty": not text,
        "can't be part of a file name": text in {".", ".."} or "/" in text,
        "has a control character": _CONTROL.search(text),
        "has a ~, which is reserved for names that this program shortens": "~" in text,
        "has a dot": not dots and "." in text,
    }
    return next((fault for fault, found in faults.items() if found), None)


def database_fault(text: object) -> str | None:
    """What is wrong with the name of a database that a consumer asks for, or None."""
    if not isinstance(text, str):
        return "must be text"
    if not text:
        return "is empty"
    if _CONTROL.search(text):
        return "has a control character"
    if len(text.encode()) > MAX_BYTES:
        return f"is longer than {MAX_BYTES} bytes, which PostgreSQL would cut"
    if text.lower() in _RESERVED_DATABASES:
        return "is PostgreSQL's own"
    return None


def role_fault(name: str) -> str | None:
    """Why PostgreSQL, or a person reading its catalogue, can't have a role of that name; or None (A5.6, 5)."""
    if name.startswith("pg_"):
        return "a role's name can't begin with pg_"
    if name.lower() in _RESERVED_ROLES:
        return f"{name} is a reserved word for a role"
    return None


def shortened(full: str) -> str:
    """``full`` as it is when it fits, else its beginning, ``~`` and 16 digits of its SHA-256."""
    encoded = full.encode()
    if len(encoded) <= MAX_BYTES:
        return full
    prefix = encoded[:_PREFIX_BYTES].decode(errors="ignore")
    return f"{prefix}~{hashlib.sha256(encoded).hexdigest()[:_HASH_DIGITS]}"


def login_name(node: str, module: str) -> str:
    """The login of a consumer: the stem of its secret file, so that an operator meets one word in both places."""
    return shortened(f"{node}.{module}")


def kept_name(node: str, module: str) -> str:
    """The role without LOGIN that goes on owning a departed consumer's data."""
    return shortened(f"{node}.{module}~kept")


def group_name(database: str, kind: str) -> str:
    """The group role that holds one kind of access (``ro`` or ``rw``) to a database."""
    return shortened(f"{database}~{kind}")


def secret_file(node: str, module: str) -> str:
    """The last part of the path of a consumer's secret (mesh.md A3)."""
    return f"{node}.{module}.secret"
