"""SCRAM-SHA-256 verifiers (RFC 5803, RFC 7677) as PostgreSQL stores them, so that no password ever travels to it.

A password sent to the server in a statement ends in its log as soon as that statement fails, or DDL is logged
(mesh.md A5.9). A verifier is all the server needs, and nobody can log in with it.
"""

import base64
import hashlib
import hmac
import secrets
import stringprep
import unicodedata

ITERATIONS = 4096
"""PostgreSQL's own default. The password is a random one from the mesh: more rounds would only slow each login."""

_SALT_BYTES = 16
_PROHIBITED = (
    stringprep.in_table_a1,
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)


def _is_prohibited(char: str) -> bool:
    return any(table(char) for table in _PROHIBITED)


def _prepared(password: str) -> str:
    """The password as PostgreSQL's client library prepares it before a login: SASLprep (RFC 4013).

    PostgreSQL takes a password that SASLprep prohibits as it stands; so must we, or that login could never be used.
    """
    if password.isascii():
        return password
    mapped = "".join(
        " " if stringprep.in_table_c12(char) else char
        for char in password
        if stringprep.in_table_c12(char) or not stringprep.in_table_b1(char)
    )
    if not mapped or any(map(_is_prohibited, mapped)):
        return password
    # PostgreSQL looks at the mapped text, not at the normalised one as the RFC has it: both here and above.
    if any(map(stringprep.in_table_d1, mapped)):
        right_to_left = stringprep.in_table_d1(mapped[0]) and stringprep.in_table_d1(mapped[-1])
        if not right_to_left or any(map(stringprep.in_table_d2, mapped)):
            return password
    return unicodedata.normalize("NFKC", mapped)


def verifier(password: str, *, salt: bytes | None = None, iterations: int = ITERATIONS) -> str:
    """What PostgreSQL stores for a password.

    Args:
        password: not empty; the caller has seen to that.
        salt: 16 random bytes when not given.
        iterations: rounds of PBKDF2.

    Returns:
        ``SCRAM-SHA-256$<iterations>:<salt>$<stored key>:<server key>``, in ASCII.
    """
    salt = secrets.token_bytes(_SALT_BYTES) if salt is None else salt
    salted = hashlib.pbkdf2_hmac("sha256", _prepared(password).encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    stored_key = hashlib.sha256(client_key).digest()
    texts = [base64.b64encode(each).decode() for each in (salt, stored_key, server_key)]
    return f"SCRAM-SHA-256${iterations}:{texts[0]}${texts[1]}:{texts[2]}"
