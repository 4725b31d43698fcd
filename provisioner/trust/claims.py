"""Claims of Choria's tokens: their types, their order on the wire, and the times between which they count (8.1).

A shape lists claims in the order of Go's encoder. What a shape doesn't know is left out, as Go leaves it out.
"""

import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from provisioner.errors import TrustError

LEEWAY = 60
"""Seconds by which another clock may differ from ours: a token one second early has stopped whole fleets."""

MAX_DEPTH = 32
"""Nesting of the free-form ``extensions`` claim."""

LAST_SECOND = 253_402_300_799
"""The end of the year 9999: what is later is not a time in seconds (most often milliseconds)."""


def text(value: object) -> str:
    """A string."""
    if not isinstance(value, str):
        raise TypeError("must be text")
    return value


def flag(value: object) -> bool:
    """A boolean."""
    if not isinstance(value, bool):
        raise TypeError("must be true or false")
    return value


def date(value: object) -> int:
    """A time, in whole seconds since 1970."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LAST_SECOND:
        raise ValueError("must be a time in seconds since 1970")
    return int(value)


def texts(value: object) -> list[str]:
    """Strings; one alone counts as a list, as JWT has it for ``aud``."""
    return [text(one) for one in (value if isinstance(value, list) else [value])]


def free(value: object) -> dict[str, Any]:
    """Any object, its keys sorted at every level as Go encodes a map, bounded in depth."""
    if not isinstance(value, dict):
        raise TypeError("must be an object")
    ordered = _ordered(value, 0)
    assert isinstance(ordered, dict)
    return ordered


def _ordered(value: object, depth: int) -> object:
    """The same value with its keys sorted, as Go encodes a map; also the bound on its depth."""
    if depth > MAX_DEPTH:
        raise ValueError(f"is nested deeper than {MAX_DEPTH}")
    if isinstance(value, dict):
        return {name: _ordered(value[name], depth + 1) for name in sorted(value)}
    if isinstance(value, list):
        return [_ordered(one, depth + 1) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("has a number that is too large")
    return value


Shape = tuple[tuple[str, Callable[[object], Any]], ...]

_ALWAYS: Mapping[str, Any] = {
    "cht": "",
    "chs": False,
    "chpd": False,
    "extensions": None,
    "purpose": "",
    "identity": "",
    "collectives": None,
}
"""Claims that are there even when empty, each with its empty value."""

REGISTERED: Shape = (
    ("purpose", text),
    ("tcs", text),
    ("public_key", text),
    ("issexp", date),
    ("iss", text),
    ("sub", text),
    ("aud", texts),
    ("exp", date),
    ("nbf", date),
    ("iat", date),
    ("jti", text),
)


def shaped(payload: Mapping[str, Any], shape: Shape) -> dict[str, Any]:
    """The known claims of a payload, in order; the empty ones left out where Go leaves them out.

    Raises:
        TrustError: ``jwt_malformed``, when a claim has another type than it should.
    """
    claims: dict[str, Any] = {}
    for name, convert in shape:
        value = payload.get(name)
        if value is None:
            if name in _ALWAYS:
                claims[name] = _ALWAYS[name]
            continue
        try:
            value = convert(value)
        except (TypeError, ValueError) as error:
            raise TrustError("jwt_malformed", f"the token's claim {name!a} {error}") from None
        if name in _ALWAYS or convert is date or isinstance(value, dict) or value:
            claims[name] = value
    return claims


def check_times(claims: Mapping[str, Any], now: float) -> None:
    """Checks ``exp``, ``issexp`` (whichever is first) and ``nbf``, each with ``LEEWAY``; what is absent doesn't count.

    Args:
        claims: with dates as whole seconds.
        now: Unix time in seconds.

    Raises:
        TrustError: ``jwt_expired`` or ``jwt_not_yet_valid``, with both clocks.
    """
    ends = min((claims[name] for name in ("exp", "issexp") if name in claims), default=None)
    if ends is not None and now >= ends + LEEWAY:
        raise TrustError("jwt_expired", f"the token expired at {clock(ends)}; here it is {clock(now)}{_ALLOWED}")
    begins = claims.get("nbf")
    if begins is not None and now < begins - LEEWAY:
        raise TrustError(
            "jwt_not_yet_valid", f"the token is valid from {clock(begins)} on; here it is {clock(now)}{_ALLOWED}"
        )


_ALLOWED = f" ({LEEWAY} s of difference are allowed)"


def clock(seconds: float) -> str:
    """A time for messages: ``2026-11-29T13:30:09Z``."""
    return datetime.fromtimestamp(min(max(0, math.floor(seconds)), LAST_SECOND), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
