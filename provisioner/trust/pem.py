"""The first PEM block of a text, taken apart in linear time and without a library's guesses."""

import base64
import binascii

from attrs import field, frozen

_BEGIN = "-----BEGIN "
_DASHES = "-----"
_LONGEST_LABEL = 64


@frozen
class Block:
    """One PEM block: its label (``CERTIFICATE``), whether it has headers such as ``Proc-Type``, and its body."""

    label: str
    has_headers: bool
    body: bytes = field(repr=False)


def first_block(text: str) -> Block | None:
    """The first PEM block in ``text``, or None when there is no whole one (as Go's decoder reads it, minus recovery).

    Args:
        text: any text; the caller has bounded its length.
    """
    begin = text.find(_BEGIN)
    start = begin + len(_BEGIN)
    label_end = text.find(_DASHES, start, start + _LONGEST_LABEL + len(_DASHES))
    if begin < 0 or label_end < 0:
        return None
    label = text[start:label_end]
    end = text.find(f"-----END {label}-----", label_end)
    if "\n" in label or end < 0:
        return None
    inside = text[label_end + len(_DASHES) : end]
    headers, blank, body = inside.strip().replace("\r\n", "\n").partition("\n\n")
    has_headers = bool(blank)
    try:
        return Block(label, has_headers, base64.b64decode("".join((body if blank else headers).split()), validate=True))
    except (binascii.Error, ValueError):
        return None


def armour(label: str, body: bytes, headers: tuple[str, ...] = ()) -> str:
    """One PEM block as text: 64 characters a line, a final newline, an empty line after the headers if any."""
    encoded = base64.b64encode(body).decode()
    lines = [f"{_BEGIN}{label}{_DASHES}", *headers, *([""] if headers else [])]
    lines += [encoded[at : at + 64] for at in range(0, len(encoded), 64)]
    return "\n".join([*lines, f"-----END {label}{_DASHES}", ""])
