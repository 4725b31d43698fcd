"""KSUIDs, and which texts can be a server's identity."""

KSUID_EPOCH = 1_400_000_000
"""Unix seconds at which KSUIDs begin to count (wire-protocol 8.6)."""
KSUID_PAYLOAD_BYTES = 16
KSUID_LENGTH = 27
MAX_IDENTITY_BYTES = 255

_BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_DIGITS = {character: value for value, character in enumerate(_BASE62)}
_KSUID_BYTES = 4 + KSUID_PAYLOAD_BYTES


def ksuid(seconds: int, payload: bytes) -> str:
    """A KSUID, 27 characters (wire-protocol 8.6).

    Args:
        seconds: Unix seconds, 1400000000 to 5694967295.
        payload: 16 bytes, random unless a test wants to know them.

    Raises:
        ValueError: out of range.
    """
    stamp = seconds - KSUID_EPOCH
    if not 0 <= stamp < 1 << 32 or len(payload) != KSUID_PAYLOAD_BYTES:
        raise ValueError(f"no KSUID for {seconds} seconds and {len(payload)} bytes")
    number = int.from_bytes(stamp.to_bytes(4, "big") + payload, "big")
    text = []
    for _ in range(KSUID_LENGTH):
        number, digit = divmod(number, 62)
        text.append(_BASE62[digit])
    return "".join(reversed(text))


def parse_ksuid(text: str) -> tuple[int, bytes]:
    """Takes a KSUID apart.

    Returns:
        Unix seconds and the 16 bytes of payload.

    Raises:
        ValueError: it is none.
    """
    if len(text) != KSUID_LENGTH or not all(character in _DIGITS for character in text):
        raise ValueError("not a KSUID: 27 letters and digits are wanted")
    number = 0
    for character in text:
        number = number * 62 + _DIGITS[character]
    if number >= 1 << (8 * _KSUID_BYTES):
        raise ValueError("not a KSUID: the number is too large")
    data = number.to_bytes(_KSUID_BYTES, "big")
    return int.from_bytes(data[:4], "big") + KSUID_EPOCH, data[4:]


def identity_problem(identity: str) -> str | None:  # noqa: PLR0911 - one return for each way to be wrong
    """Why a text can't be a server's identity, or None when it can.

    An identity is put into subjects as it stands, so it must not be able to name more than one server, or none.

    Returns:
        such as ``"it has a wildcard"``, to be put after the name in a message; None for a good one.
    """
    if not identity:
        return "it is empty"
    if not identity.isascii():
        return "it has a character outside ASCII"
    if len(identity) > MAX_IDENTITY_BYTES:
        return f"it has {len(identity)} bytes, more than {MAX_IDENTITY_BYTES}"
    if any(not "!" <= character <= "~" for character in identity):
        return "it has a blank or a control character"
    if "*" in identity or ">" in identity:
        return "it has a wildcard"
    if not all(identity.split(".")):
        return "it has nothing before, between or after its dots"
    return None
