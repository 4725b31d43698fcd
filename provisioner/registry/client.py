"""For programs on the mesh: ask the verb, resolve a kind, keep one node's own keys (typed; spec: mesh B2, B6, B7)."""

from collections.abc import AsyncIterator
from typing import Any

from attrs import frozen

from provisioner import strictjson
from provisioner.bus.interface import Bus
from provisioner.bus.keyvalue import KeyValue
from provisioner.errors import BadReply, RegistryError
from provisioner.registry.answer import BAD_REQUEST, narrowed
from provisioner.registry.keys import APPLIED, COLLECT, NEEDS, REGISTRY, SHAPES, Shape, encode_token, quoted
from provisioner.registry.rows import value_fault
from provisioner.registry.table import Kind, canonical

VERB = "mesh-provisioner.provisioning"
"""The subject of the one verb."""

ANSWER_TIMEOUT = 5.0
"""Seconds. The service answers within 2 s whatever happens; the rest is for the way."""

MAX_PAGES = 10_000
"""Pages of one answer. No bucket that the service holds has more."""


@frozen
class Page:
    """One page of an answer, or all pages together.

    Attributes:
        what: the word of the bucket.
        sequence: the bucket's last sequence number; the page is at least as new.
        items: each with its names, ``key``, ``revision`` and ``value``, in the order of the keys.
        bad_keys: keys out of shape, each with ``key``, ``revision`` and ``why``, whatever was asked.
        bad_keys_total: how many there are on all pages together.
        bad_values: like ``bad_keys``, for values that are no JSON.
        next: ask behind this key for the next page; None on the last.
    """

    what: str
    sequence: int
    items: list[dict[str, Any]]
    bad_keys: list[dict[str, Any]]
    bad_keys_total: int
    bad_values: list[dict[str, Any]]
    next: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The answer as the service writes it (spec: mesh B6)."""
        page = {name: getattr(self, name) for name in _FIELDS}
        return {**page, "truncated": self.next is not None, **({} if self.next is None else {"next": self.next})}


_FIELDS: dict[str, type] = {
    "what": str,
    "sequence": int,
    "items": list,
    "bad_keys": list,
    "bad_keys_total": int,
    "bad_values": list,
}


def read_answer(data: bytes) -> Page:
    """Reads one answer of the verb.

    Raises:
        RegistryError: the service answered with an error; ``code`` is its word.
        BadReply: this is no answer of the service.
    """
    try:
        answer = strictjson.loads(data)
    except strictjson.NotJSON as error:
        raise BadReply(f"the answer is not JSON: {error}") from None
    match answer:
        case {"error": {"code": str(code), "message": str(message)}}:
            raise RegistryError(code, message)
        case {"truncated": bool(truncated)} if all(type(answer.get(name)) is _FIELDS[name] for name in _FIELDS):
            following = answer.get("next") if truncated else None
            rows = [*answer["items"], *answer["bad_keys"], *answer["bad_values"]]
            if isinstance(following, str) == truncated and all(_is_row(row) for row in rows):
                return Page(**{name: answer[name] for name in _FIELDS}, next=following)
    raise BadReply("the answer is not of the form that the verb has")


def _is_row(row: object) -> bool:
    return isinstance(row, dict) and isinstance(row.get("key"), str) and isinstance(row.get("revision"), int)


async def ask_pages(
    bus: Bus, what: str = REGISTRY.what, *, timeout: float = ANSWER_TIMEOUT, **narrowing: str
) -> AsyncIterator[Page]:
    """Asks the verb and gives page after page.

    Args:
        bus: a connection whose account may publish to the verb.
        what: ``registry``, ``needs``, ``applied`` or ``collect``.
        timeout: seconds for each page.
        narrowing: ``node``, ``module``, and for ``collect`` ``collection``: whole names.

    Raises:
        RegistryError: the question is wrong (``bad_request``; nothing was sent), or the service said so.
        BusError: no answer, no permission, no connection, or an answer that is none.
    """
    if what not in SHAPES:
        raise RegistryError(BAD_REQUEST, f"unknown what {quoted(what)}; allowed: {', '.join(SHAPES)}")
    after = ""
    for _ in range(MAX_PAGES):
        question = narrowed(SHAPES[what], narrowing, after)
        page = read_answer((await bus.request(VERB, question.encode(), timeout=timeout)).data)
        if page.what != what:
            raise BadReply(f"asked for {what}, answered {quoted(page.what)}")
        yield page
        if page.next is None:
            return
        if page.next <= after:
            raise BadReply("the answer's pages go round in a circle")
        after = page.next
    raise BadReply(f"the answer has more than {MAX_PAGES} pages")


async def ask(bus: Bus, what: str = REGISTRY.what, *, timeout: float = ANSWER_TIMEOUT, **narrowing: str) -> Page:
    """All pages of an answer as one. Arguments and errors as ``ask_pages``.

    The buckets may change between two pages: ``sequence`` is the first page's, and all is at least as new.
    """
    pages = [page async for page in ask_pages(bus, what, timeout=timeout, **narrowing)]
    return Page(
        what,
        pages[0].sequence,
        [row for page in pages for row in page.items],
        [row for page in pages for row in page.bad_keys],
        pages[-1].bad_keys_total,
        [row for page in pages for row in page.bad_values],
    )


class NodeClient:
    """One node's part: its own keys in the three buckets, under the narrow grant ``<node>.>`` (mesh.md B7).

    Each ``put_`` compares first and writes only what differs, against the revision that it read, because a write wakes
    every watcher of the mesh even when it changes nothing. ``put_`` and ``delete_`` tell whether they wrote. Errors of
    all of them:

        BadName: a name can't be part of a key.
        ValueError, TypeError: the value is no JSON that every reader can take.
        RevisionConflict: another client wrote the same key meanwhile.
        BusError: the server can't be reached or refused; ``PermissionDenied`` when this account has no grant for it.

    Args:
        bus: a connection of this node's account.
        node: the node's name, as it is: the grant has to hold it as ``encode_token`` writes it.
    """

    def __init__(self, bus: Bus, node: str) -> None:
        encode_token(node)
        self.node = node
        self._buckets = {what: KeyValue(bus, shape.bucket) for what, shape in SHAPES.items()}

    async def put_need(self, module: str, kind: str, name: str, value: Any) -> bool:
        """Says that a module here needs ``name`` of this kind."""
        return await self._put(NEEDS, (module, kind, name), value)

    async def delete_need(self, module: str, kind: str, name: str) -> bool:
        """Says that it no longer does."""
        return await self._delete(NEEDS, (module, kind, name))

    async def put_applied(self, module: str, value: Any) -> bool:
        """Says what is applied here of a module."""
        return await self._put(APPLIED, (module,), value)

    async def delete_applied(self, module: str) -> bool:
        """Says that nothing of it is."""
        return await self._delete(APPLIED, (module,))

    async def put_item(self, collection: str, contributor: str, value: Any) -> bool:
        """Contributes a module's item to a collection."""
        return await self._put(COLLECT, (collection, contributor), value)

    async def delete_item(self, collection: str, contributor: str) -> bool:
        """Takes it back."""
        return await self._delete(COLLECT, (collection, contributor))

    async def resolve(self, kind: str) -> Kind | None:
        """Who answers a kind of placeholder and where its values are found; None when nobody does.

        Raises:
            BadReply: what the registry holds under this name is no such answer.
        """
        entry = await self._buckets[REGISTRY.what].get(REGISTRY.key(kind))
        if entry is None:
            return None
        try:
            found = Kind.decode(entry.value)
        except ValueError as error:
            raise BadReply(f"the registry's answer for {quoted(kind)} can't be read: {error}") from None
        if found.kind != kind:
            raise BadReply(f"the registry's answer for {quoted(kind)} is about {quoted(found.kind)}")
        return found

    async def _put(self, shape: Shape, names: tuple[str, ...], value: Any) -> bool:
        bucket, key, data = self._buckets[shape.what], shape.key(self.node, *names), canonical(value)
        if fault := value_fault(data):
            raise ValueError(f"a value that readers could not take: {fault}")
        held = await bucket.get(key)
        if held is None:
            await bucket.create(key, data)
        elif held.value != data:
            await bucket.update(key, data, held.revision)
        return held is None or held.value != data

    async def _delete(self, shape: Shape, names: tuple[str, ...]) -> bool:
        bucket, key = self._buckets[shape.what], shape.key(self.node, *names)
        held = await bucket.get(key)
        if held is not None:
            await bucket.delete(key, held.revision)
        return held is not None
