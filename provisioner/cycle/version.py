"""Versions of Choria Server: are two the same release? (wire-protocol A.1)."""

import re

_SEGMENT = re.compile("[a-zA-Z]+|[0-9]+|~")
_EPOCH = re.compile(r"[+-]?[0-9]{1,18}")


def same_version(one: str, other: str) -> bool:
    """Whether two versions are equal as RPM sees them: ``0.30.2`` is ``0.30.02`` and not ``0.30.2-1``.

    Neither is older or newer here: a site may go back as well as forward.

    Args:
        one: ``[epoch:]version[-release]``.
        other: likewise.
    """
    return _parts(one) == _parts(other)


def _parts(text: str) -> tuple[int, list[str], list[str]]:
    before, colon, after = text.partition(":")
    # As in the Go program, an epoch that is no number counts as none.
    epoch = int(before) if colon and _EPOCH.fullmatch(before.lstrip()) else 0
    version, _, release = (after if colon else text).partition("-")
    return epoch, _segments(version), _segments(release)


def _segments(text: str) -> list[str]:
    # Zeros in front of a number don't count; "0" itself is then the empty number.
    return [part.lstrip("0") if part[0] in "0123456789" else part for part in _SEGMENT.findall(text)]
