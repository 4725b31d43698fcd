"""How Go writes JSON and base64, and how one layer of a message is read when its sender may be hostile."""

import binascii
from typing import Any

from provisioner import strictjson
from provisioner.errors import BadReply

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
"""The largest message we decode, in bytes: four times NATS's default payload limit. Decoding takes up to some 30 times
that for a moment, so this bounds what one message can cost."""
MAX_SHOWN = 80
"""Characters of a stranger's text that an error message quotes."""

_ESCAPES = (("<", "\\u003c"), (">", "\\u003e"), ("&", "\\u0026"), ("\u2028", "\\u2028"), ("\u2029", "\\u2029"))


def dumps(value: Any, *, sort_keys: bool = False) -> str:
    """One JSON text as Go's encoder writes it: compact, ``<``, ``>``, ``&`` and the two line separators escaped.

    Args:
        value: what ``json`` can encode, without NaN.
        sort_keys: as Go does for maps (not for structs), at every level.
    """
    text = strictjson.dumps(value, sort_keys=sort_keys)
    for character, escape in _ESCAPES:  # they can only stand inside strings
        text = text.replace(character, escape)
    return text


def b64(data: bytes) -> str:
    """RFC 4648 standard base64 with padding."""
    return binascii.b2a_base64(data, newline=False).decode("ascii")


def shown(text: str) -> str:
    """A stranger's text fit for an error message: quoted, short, no control characters."""
    return ascii(text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "...")


class Layer:
    """One decoded JSON object of a message; each getter checks the type and names the layer when it is wrong."""

    __slots__ = ("_fields", "_name")

    def __init__(self, fields: Any, name: str) -> None:
        if not isinstance(fields, dict):
            raise BadReply(f"the {name} is not a JSON object")
        self._fields: dict[str, Any] = fields
        self._name = name

    @classmethod
    def decode(cls, data: bytes | str, name: str, *, limit: int = MAX_MESSAGE_BYTES) -> "Layer":
        """Decodes one JSON object.

        Raises:
            BadReply: over ``limit`` bytes (characters of a text), not JSON, or not an object.
        """
        if len(data) > limit:
            raise BadReply(f"the {name} has {len(data)} bytes, more than the {limit} that are read")
        try:
            return cls(strictjson.loads(data), name)
        except strictjson.NotJSON as error:
            raise BadReply(f"the {name} is not JSON: {error}") from None

    def __contains__(self, key: str) -> bool:
        return key in self._fields

    def require_protocol(self, protocol: str) -> None:
        """Raises BadReply unless ``protocol`` is what this layer says it is."""
        if (found := self.text("protocol")) != protocol:
            raise BadReply(f"the {self._name} is {shown(found)}, not {protocol!r}")

    def text(self, key: str) -> str:
        """A string that must be there; it may be empty."""
        value = self._fields.get(key)
        if not isinstance(value, str):
            raise BadReply(f"{key} of the {self._name} is {_kind(value)}, not text")
        return value

    def filled(self, key: str) -> str:
        """A string that must be there and not be empty."""
        if not (value := self.text(key)):
            raise BadReply(f"{key} of the {self._name} is empty")
        return value

    def optional_text(self, key: str) -> str:
        """A string, or ``""`` when the key is missing or null."""
        return "" if self._fields.get(key) is None else self.text(key)

    def integer(self, key: str) -> int:
        """An integer that must be there (a boolean is none, nor is 1.0)."""
        value = self._fields.get(key)
        if not isinstance(value, int) or isinstance(value, bool):
            raise BadReply(f"{key} of the {self._name} is {_kind(value)}, not an integer")
        return value

    def base64(self, key: str) -> bytes:
        """The bytes of a base64 string that must be there."""
        try:
            # Go skips line ends in base64, and nothing else.
            return binascii.a2b_base64(self.text(key).replace("\n", "").replace("\r", ""), strict_mode=True)
        except ValueError:
            raise BadReply(f"{key} of the {self._name} is not base64") from None

    def layer(self, key: str) -> "Layer":
        """An object that must be there."""
        return Layer(self._fields.get(key), f"{key} of the {self._name}")

    def objects(self, key: str) -> list[Any]:
        """An array that must be there; its members are unchecked."""
        value = self._fields.get(key)
        if not isinstance(value, list):
            raise BadReply(f"{key} of the {self._name} is {_kind(value)}, not an array")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """An array of strings that must be there."""
        values = self.objects(key)
        if not all(isinstance(value, str) for value in values):
            raise BadReply(f"{key} of the {self._name} has a member that is not text")
        return tuple(values)

    def mapping(self, key: str) -> dict[str, Any]:
        """An object as a dict; ``{}`` when the key is missing or null."""
        value = self._fields.get(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise BadReply(f"{key} of the {self._name} is {_kind(value)}, not an object")
        return value


def _kind(value: object) -> str:
    names: dict[type, str] = {dict: "an object", list: "an array", str: "text", type(None): "missing"}
    return names.get(type(value), type(value).__name__)
