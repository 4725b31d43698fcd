"""Compact JSON web signatures: taken apart within bounds, verified with a pinned algorithm, made (wire-protocol 8.1).

The key decides which algorithms count; the token's header only has to agree.
"""

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any

from jwt import PyJWS
from jwt.algorithms import get_default_algorithms

from provisioner import strictjson
from provisioner.choria.encoding import dumps, shown
from provisioner.errors import TrustError
from provisioner.trust.keys import SigningKey, VerificationKey

MAX_TOKEN = 16 * 1024
"""Characters of a token. The servers' own limit for one they receive is 2048 (wire-protocol 6.5)."""

_COMPACT = re.compile(r"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)")
_jws = PyJWS()
_ALGORITHMS = get_default_algorithms()


def verify_signature(text: str, key: VerificationKey) -> dict[str, Any]:
    """Verifies a compact JWS and gives its payload as it stands: signed by ``key``, not yet checked in any other way.

    Args:
        text: the token; blanks around it don't count.
        key: what it must be signed with.

    Raises:
        TrustError: ``jwt_missing``, ``jwt_malformed``, ``jwt_bad_algorithm`` or ``jwt_bad_signature``.
    """
    header, payload, signed, signature = _parts(text.strip())
    algorithm = header.get("alg")
    if algorithm not in key.algorithms:
        raise TrustError(
            "jwt_bad_algorithm",
            f"the token says it is signed with {shown(str(algorithm))}; the {key.kind} key that is configured"
            f" goes with {', '.join(key.algorithms)} only",
        )
    # Not PyJWS.decode: it would take the token apart a second time, which costs more than the verification.
    if not _ALGORITHMS[algorithm].verify(signed, key.key, signature):
        raise TrustError("jwt_bad_signature", f"the token is not signed by the {key.kind} key that is configured")
    return _object(payload, "payload")


def unverified_claims(text: str) -> dict[str, Any]:
    """The payload of a token that nobody has verified. Only to find out which key should be asked.

    Raises:
        TrustError: ``jwt_missing`` or ``jwt_malformed``.
    """
    return _object(_parts(text.strip())[1], "payload")


def sign(claims: Mapping[str, Any], key: SigningKey) -> str:
    """Signs claims as a compact JWS, byte for byte as the Go program would (wire-protocol 8.1)."""
    return _jws.encode(dumps(claims).encode(), key.key, algorithm=key.algorithm)


def _parts(text: str) -> tuple[dict[str, Any], bytes, bytes, bytes]:
    """Header and payload of a compact JWS, decoded and not verified; what is signed of it, and the signature."""
    if not text:
        raise TrustError("jwt_missing", "there is no token")
    found = _COMPACT.fullmatch(text) if len(text) <= MAX_TOKEN else None
    if found is None:
        raise TrustError("jwt_malformed", f"no JSON web token of at most {MAX_TOKEN} characters")
    header = _object(_decoded(found[1]), "header", unique_keys=True)
    if "crit" in header or "b64" in header:
        raise TrustError("jwt_malformed", "the token's header asks for an extension that is not known here")
    if not isinstance(header.get("kid", ""), str):
        raise TrustError("jwt_malformed", "the token's header names its key by something else than text")
    return header, _decoded(found[2]), text[: found.end(2)].encode(), _decoded(found[3])


def _decoded(segment: str) -> bytes:
    try:
        content = base64.urlsafe_b64decode(segment + "=" * (-len(segment) % 4))
    except binascii.Error:
        raise TrustError("jwt_malformed", "a part of the token is not base64") from None
    if base64.urlsafe_b64encode(content).rstrip(b"=") != segment.encode():
        raise TrustError("jwt_malformed", "a part of the token is not base64 in its one spelling")
    return content


def _object(content: bytes, part: str, *, unique_keys: bool = False) -> dict[str, Any]:
    try:
        value = strictjson.loads(content, unique_keys=unique_keys)
    except strictjson.NotJSON as error:
        raise TrustError("jwt_malformed", f"the token's {part} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise TrustError("jwt_malformed", f"the token's {part} is not a JSON object")
    return value
