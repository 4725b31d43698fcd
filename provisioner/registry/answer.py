"""One question to the verb and its answer, over the rows of a bucket: pure, and never larger than the limit.

A page is a stretch of the bucket in the order of its keys. Good items, keys out of shape and values that are no JSON
share that one order, so the last key of a page is all that the next question needs (spec: mesh B6).
"""

from json.encoder import encode_basestring
from typing import NamedTuple

from attrs import field, frozen

from provisioner import strictjson
from provisioner.errors import RegistryError
from provisioner.registry.keys import REGISTRY, SHAPES, BadName, Shape, encode_token, quoted
from provisioner.registry.rows import Row, Rows

MAX_ANSWER = 1024 * 1024
"""Bytes of one answer, should the server allow even more: it bounds the time that one page takes from the others."""

MAX_REQUEST = 32 * 1024
"""Bytes of a question. Five names of the longest kind, each character escaped, fit."""

BAD_REQUEST = "bad_request"
UNAVAILABLE = "unavailable"
INTERNAL = "internal"

_WORDS = ("what", "node", "module", "collection", "after")


@frozen
class Request:
    """A question, understood: about which bucket, narrowed to which whole names, behind which key."""

    shape: Shape = REGISTRY
    narrowing: dict[str, str] = field(factory=dict)
    after: str = ""

    def encode(self) -> bytes:
        """The question as it is sent."""
        after = {"after": self.after} if self.after else {}
        return strictjson.dumps({"what": self.shape.what, **self.narrowing, **after}).encode()


def parse_request(data: bytes) -> Request:
    """Reads a question.

    Args:
        data: JSON object, or nothing, which asks for the registry.

    Raises:
        RegistryError: ``bad_request``, with the allowed values.
    """
    if len(data) > MAX_REQUEST:
        raise _bad(f"a request has at most {MAX_REQUEST} bytes, this one has {len(data)}")
    try:
        asked = strictjson.loads(data or b"{}", unique_keys=True)
    except strictjson.NotJSON as error:
        raise _bad(f"the request is not JSON: {error}") from None
    if not isinstance(asked, dict):
        raise _bad("the request must be a JSON object")
    for word, value in asked.items():
        if word not in _WORDS:
            raise _bad(f"unknown field {quoted(word)}; allowed: {', '.join(_WORDS)}")
        if not isinstance(value, str):
            raise _bad(f"{word} must be a text")
    what = asked.pop("what", REGISTRY.what)
    if what not in SHAPES:
        raise _bad(f"unknown what {quoted(what)}; allowed: {', '.join(SHAPES)}")
    after = asked.pop("after", "")
    return narrowed(SHAPES[what], asked, after)


def narrowed(shape: Shape, narrowing: dict[str, str], after: str = "") -> Request:
    """A checked question.

    Raises:
        RegistryError: ``bad_request``: a narrowing that does not apply or can't be a name.
    """
    for word, name in narrowing.items():
        if word not in shape.narrowings:
            allowed = f"; allowed: {', '.join(shape.narrowings)}" if shape.narrowings else ""
            raise _bad(f"{word} does not narrow {shape.what}{allowed}")
        try:
            encode_token(name)
        except BadName as error:
            raise _bad(f"{word}: {error}") from None
    return Request(shape, narrowing, after)


def _bad(message: str) -> RegistryError:
    return RegistryError(BAD_REQUEST, message)


def error_answer(code: str, message: str) -> bytes:
    """The answer to a question that can't be answered."""
    return strictjson.dumps({"error": {"code": code, "message": message}}).encode()


class _Part(NamedTuple):
    """One row, ready to be put in its list."""

    place: str
    text: bytes


def answer(request: Request, rows: Rows, sequence: int, limit: int) -> bytes:
    """One page of the answer: as many rows behind ``request.after`` as fit.

    Args:
        request: the question.
        rows: what its bucket holds now.
        sequence: the bucket's last sequence number; the rows are at least as new.
        limit: bytes that the server lets one message have.

    Returns:
        JSON, at most ``limit`` bytes. With ``"truncated": true`` there is ``"next"``, the key to ask behind.

    Raises:
        RegistryError: ``unavailable``: the limit is so small that not even one row fits.
    """
    lists: dict[str, list[bytes]] = {"items": [], "bad_keys": [], "bad_values": []}
    limit = min(limit, MAX_ANSWER)
    last, more = "", False
    size = len(_page(request, lists, rows.bad_keys, sequence, None))
    for row in rows.after(request.after, request.narrowing):
        part = _part(request.shape, row)
        room = limit - size - _next_size(row.key)
        if len(part.text) >= room and not last:
            part = _fault(row, f"{len(row.value)} bytes, too large for an answer")
        if len(part.text) >= room:
            more = True
            break
        lists[part.place].append(part.text)
        size += len(part.text) + 1
        last = row.key
    if more and not last:
        raise RegistryError(UNAVAILABLE, f"the server's limit of {limit} bytes for a message is too small to answer")
    return _page(request, lists, rows.bad_keys, sequence, last if more else None)


def _page(request: Request, lists: dict[str, list[bytes]], bad: int, sequence: int, more: str | None) -> bytes:
    items, bad_keys, bad_values = (b",".join(lists[place]) for place in ("items", "bad_keys", "bad_values"))
    head = b'{"what":"%b","sequence":%d,"items":[' % (request.shape.what.encode(), sequence)
    tail = b"false}" if more is None else b'true,"next":%b}' % _text(more)
    return (
        head + items + b'],"bad_keys":[' + bad_keys + b'],"bad_keys_total":%d,"bad_values":[' % bad + bad_values
        + b'],"truncated":' + tail
    )  # fmt: skip


def _next_size(key: str) -> int:
    return len(b',"next":') + len(_text(key))


def _text(text: str) -> bytes:
    return encode_basestring(text).encode()


def _part(shape: Shape, row: Row) -> _Part:
    if row.fault:
        return _fault(row, row.fault)
    names = b"".join(
        b'"%b":%b,' % (word.encode(), _text(name)) for word, name in zip(shape.fields, row.names, strict=True)
    )
    # The value goes on as it was stored: it was read as JSON when it came in, and is not ours to rewrite.
    return _Part("items", b'{%b"key":%b,"revision":%d,"value":%b}' % (names, _text(row.key), row.revision, row.value))


def _fault(row: Row, why: str) -> _Part:
    text = b'{"key":%b,"revision":%d,"why":%b}' % (_text(row.key), row.revision, _text(why))
    return _Part("bad_values" if row.names else "bad_keys", text)
