"""Durations as Choria writes them: ``30s``, ``1h30m``, ``2w``, ``1y`` (wire-protocol 11.5)."""

import re
import struct

_HOURS = {"w": 168, "W": 168, "d": 24, "D": 24, "M": 720, "y": 8760, "Y": 8760}
_GO_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_GO_PART = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)")
MAX_SECONDS = (1 << 63) / 1e9
"""What Go's duration holds: some 292 years."""
MAX_TEXT = 100
HOUR = 3600.0


def parse_duration(text: str) -> float:
    """Seconds of a duration; an empty text is 0.

    Weeks, days, months of 30 days and years of 365 days are one number and one letter, cut to whole hours; anything
    else is written as Go does: ``1h30m``, ``100ms``.

    Raises:
        ValueError: it is none; the message says why.
    """
    text = text.strip()
    if not text:
        return 0.0
    if len(text) > MAX_TEXT:
        raise ValueError("no duration is that long a text")
    if hours := _HOURS.get(text[-1]):
        number = text[:-1]
        if not _NUMBER.fullmatch(number):
            raise ValueError(f"invalid duration {text!a}: one number is wanted before {text[-1]}")
        _bounded(float(number) * HOUR, text)  # and so within what 32 bits of float can hold
        (rounded,) = struct.unpack("f", struct.pack("f", float(number)))
        return _bounded(int(rounded * hours) * HOUR, text)
    if text[-1] in "smhSH":
        return _bounded(_go_duration(text), text)
    raise ValueError(f"invalid time unit {text[-1]!a} in {text!a}")


def _go_duration(text: str) -> float:
    sign, rest = (-1.0, text[1:]) if text[0] == "-" else (1.0, text.removeprefix("+"))
    total, end = 0.0, 0
    for part in _GO_PART.finditer(rest):
        if part.start() != end:
            break
        total += float(part[1]) * _GO_UNITS[part[2]]
        end = part.end()
    if end != len(rest):
        raise ValueError(f"invalid duration {text!a}: valid are 30s, 10m, 1h30m, 2d, 1w, 6M, 1y")
    return sign * total


def _bounded(seconds: float, text: str) -> float:
    if abs(seconds) >= MAX_SECONDS:
        raise ValueError(f"invalid duration {text!a}: too long")
    return seconds
