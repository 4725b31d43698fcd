"""Names to bucket keys and back: the token codec, a strict bijection, and the shape of each bucket's keys.

A key is made of tokens parted by dots. A token holds letters, digits, ``_``, ``-`` and ``/`` as they are; every other
character is its UTF-8 bytes, each written ``=`` and two upper-case hexadecimal digits. Reading is as strict as writing,
so one name has one token and one token has one name: otherwise two keys could name the same collection, or a name with
a dot could pass for two tokens and reach into another node's keys (spec: mesh B4).
"""

import json
import re
from collections.abc import Mapping

from attrs import frozen

MAX_KEY = 768
"""Bytes of a key, as the bus takes it: a server reads lines of 4,096 bytes, with everything else on them."""

MAX_QUOTED = 200
"""Characters of a stranger's text that a message quotes."""

_ESCAPED = re.compile(rb"[^A-Za-z0-9_/-]")
_PLAIN = re.compile(r"[A-Za-z0-9_/-]+")
_ESCAPE = re.compile(r"=([0-9A-F]{2})?")
_OUTSIDE = re.compile(r"[^A-Za-z0-9_/=-]")


class BadName(ValueError):
    """A name that no token can hold. The message is for the one who gave the name."""


class BadKey(ValueError):
    """A key out of its bucket's shape. The message says what is wrong with it."""


def quoted(text: str) -> str:
    """The text by its JSON escape, ASCII only, at most ``MAX_QUOTED`` characters."""
    escaped = json.dumps(text[:MAX_QUOTED])
    return escaped if len(escaped) <= MAX_QUOTED and len(text) <= MAX_QUOTED else escaped[: MAX_QUOTED - 4] + '..."'


def encode_token(name: str) -> str:
    """The token that stands for a name: ``shell:zsh`` is ``shell=3Azsh``.

    Raises:
        BadName: the name is empty, is no Unicode text, or takes more than ``MAX_KEY`` bytes.
    """
    if not name:
        raise BadName("a name can't be empty")
    try:
        token = _ESCAPED.sub(lambda found: b"=%02X" % found[0][0], name.encode()).decode()
    except UnicodeEncodeError:
        raise BadName("a name has half of a surrogate pair") from None
    if len(token) > MAX_KEY:
        raise BadName(f"a name takes {len(token)} bytes as a token, a key has at most {MAX_KEY}")
    return token


def decode_token(token: str) -> str:
    """The name that a token stands for.

    Raises:
        BadKey: the token is not what ``encode_token`` writes for any name.
    """
    if _PLAIN.fullmatch(token):
        return token
    if not token:
        raise BadKey("a part is empty")
    if found := _OUTSIDE.search(token):
        raise BadKey(f"{quoted(found[0])} must be written by its bytes as =HH")
    raw = bytearray()
    end = 0
    for found in _ESCAPE.finditer(token):
        if found[1] is None:
            raise BadKey(f"= in {quoted(token)} is not followed by two upper-case hexadecimal digits")
        raw += token[end : found.start()].encode()
        byte = int(found[1], 16)
        if not _ESCAPED.match(bytes([byte])):
            raise BadKey(f"{found[0]} stands for {chr(byte)}, which is written as it is")
        raw.append(byte)
        end = found.end()
    raw += token[end:].encode()
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise BadKey(f"{quoted(token)} does not stand for UTF-8 text") from None


@frozen
class Shape:
    """What the keys of one bucket look like.

    Attributes:
        what: the word for it in a question, and the end of the bucket's name.
        fields: what each token of a key names, in order.
        narrowings: what narrows a question about it: the question's word and the place in ``fields``.
    """

    what: str
    fields: tuple[str, ...]
    narrowings: Mapping[str, int]

    @property
    def bucket(self) -> str:
        """The JetStream key-value bucket."""
        return f"mesh-provisioner_{self.what}"

    def key(self, *names: str) -> str:
        """The key for names given in the order of ``fields``.

        Raises:
            BadName: a name can't be a token, or the whole key is too long.
        """
        if len(names) != len(self.fields):
            raise TypeError(f"a key of {self.bucket} takes {', '.join(self.fields)}")
        key = ".".join(map(encode_token, names))
        if len(key) > MAX_KEY:
            raise BadName(f"the key takes {len(key)} bytes, a key has at most {MAX_KEY}")
        return key

    def names(self, key: str) -> tuple[str, ...]:
        """The names that a key holds, in the order of ``fields``.

        Raises:
            BadKey: the key is out of shape.
        """
        if len(key) > MAX_KEY:
            raise BadKey(f"{len(key)} characters, a key has at most {MAX_KEY}")
        tokens = key.split(".")
        if len(tokens) != len(self.fields):
            parts = "part" if len(tokens) == 1 else "parts"
            raise BadKey(f"{len(tokens)} {parts}, a key of this bucket has {len(self.fields)}")
        return tuple(map(decode_token, tokens))


REGISTRY = Shape("registry", ("kind",), {})
NEEDS = Shape("needs", ("node", "module", "kind", "name"), {"node": 0, "module": 1})
APPLIED = Shape("applied", ("node", "module"), {"node": 0, "module": 1})
COLLECT = Shape("collect", ("node", "collection", "contributor"), {"node": 0, "module": 2, "collection": 1})

SHAPES: Mapping[str, Shape] = {shape.what: shape for shape in (REGISTRY, NEEDS, APPLIED, COLLECT)}
"""The four buckets, by the word that asks for them (spec: mesh B2)."""
