"""The registry's content as data: which module answers which kind of placeholder, and where its values are found.

**This is the one place to edit** when a kind, a bucket or a verb changes. The thirteen kinds and the bound bucket are
the mesh's; owners, verbs and the other buckets are a site's names for its own modules. A secret is never in a bucket,
and no table can say that it is: ``Kind`` refuses to be made that way (spec: mesh B3).
"""

import re
from collections.abc import Mapping
from typing import Any

from attrs import asdict, frozen

from provisioner import strictjson
from provisioner.registry.keys import COLLECT, BadName, encode_token

NEVER_IN_A_BUCKET = frozenset({"secret", "consumers"})
"""Kinds whose values are secret: asked by request and reply, never stored where a bucket's readers see them."""

_HOLE = re.compile(r"\{(\w+)\}")
_OPTIONAL = re.compile(r"\[([^\[\]]*)\]")
_BUCKET_NAME = re.compile(r"[A-Za-z0-9_-]+")


@frozen
class Bucket:
    """Values found in a key-value bucket.

    Attributes:
        bucket: its name; may have holes, such as ``{provider}_bound``.
        key: the shape of its keys: holes in braces, an optional part in square brackets.
        path: where in the value's JSON to look; empty for the whole value.
        collection: for a kind read as a collection: the name of that collection, with holes.
    """

    bucket: str
    key: str
    path: tuple[str, ...] = ()
    collection: str = ""

    def locate(self, **names: str) -> tuple[str, str]:
        """The bucket and the key for these names: each hole filled, each name in a key encoded as one token.

        A name that is given as ``""`` or not at all leaves out the optional part that holds it.

        Raises:
            BadName: a name is missing or can't be part of a key, or of a bucket's name.
        """
        names = {hole: name for hole, name in names.items() if name}
        if self.collection:
            names["collection"] = _fill(self.collection, names)
        bucket = _fill(self.bucket, names)
        if not _BUCKET_NAME.fullmatch(bucket):
            raise BadName("a name that is part of a bucket's name has only letters, digits, _ and -")
        tokens = {hole: encode_token(name) for hole, name in names.items()}

        def optional(part: re.Match[str]) -> str:
            return part[1] if all(hole in tokens for hole in _HOLE.findall(part[1])) else ""

        return bucket, _fill(_OPTIONAL.sub(optional, self.key), tokens)


@frozen
class Verb:
    """Values asked by request and reply, from the seat that has this verb."""

    verb: str


@frozen
class Kind:
    """One kind of placeholder, the module that answers it and where a client finds the values.

    Raises:
        ValueError: a kind whose values are secret was given a bucket, or a field is empty.
    """

    kind: str
    owner: str
    source: Bucket | Verb

    def __attrs_post_init__(self) -> None:
        if self.kind in NEVER_IN_A_BUCKET and isinstance(self.source, Bucket):
            raise ValueError(f"the values of {self.kind} are secret and never in a bucket: name a verb")
        if not (
            self.kind
            and self.owner
            and all((self.source.verb,) if isinstance(self.source, Verb) else (self.source.bucket, self.source.key))
        ):
            raise ValueError("a kind needs a name, an owner and a source")

    def encode(self) -> bytes:
        """The one canonical form: sorted keys, no spaces, so that equal bytes mean equal content."""
        source = {name: value for name, value in asdict(self.source).items() if value}
        return canonical({"kind": self.kind, "owner": self.owner, "from": source})

    @classmethod
    def decode(cls, value: bytes) -> "Kind":
        """Reads a registry value.

        Raises:
            ValueError: it isn't one: not JSON, a field missing, unknown or of the wrong type, both sources or neither.
        """
        match strictjson.loads(value, unique_keys=True):
            case {"kind": str(kind), "owner": str(owner), "from": dict(source), **rest} if not rest:
                return cls(kind, owner, _source(source))
            case _:
                raise ValueError("a kind is an object with the texts kind and owner and the object from")


def _source(source: dict[str, Any]) -> Bucket | Verb:
    match source:
        case {"verb": str(verb), **rest} if not rest:
            return Verb(verb)
        case {"bucket": str(bucket), "key": str(key), **rest} if rest.keys() <= {"path", "collection"}:
            path, collection = rest.get("path", []), rest.get("collection", "")
            if isinstance(collection, str) and isinstance(path, list) and all(isinstance(step, str) for step in path):
                return Bucket(bucket, key, tuple(path), collection)
    raise ValueError("from is either a verb, or a bucket and a key with, at most, a path and a collection")


def _fill(template: str, names: Mapping[str, str]) -> str:
    def name(hole: re.Match[str]) -> str:
        try:
            return names[hole[1]]
        except KeyError:
            raise BadName(f"{hole[1]} is needed for {template}") from None

    return _HOLE.sub(name, template)


def canonical(value: Any) -> bytes:
    """The one way to write a value as JSON: sorted keys, no spaces, so that equal content is equal bytes.

    Raises:
        ValueError: it can't be written as JSON: NaN, infinity, half of a surrogate pair, a circle.
        TypeError: it holds something else than JSON has.
    """
    return strictjson.dumps(value, sort_keys=True).encode()


def _collection(kind: str, name: str) -> Kind:
    shape = ".".join(f"{{{field}}}" for field in COLLECT.fields)
    return Kind(kind, "mesh-provisioner", Bucket(COLLECT.bucket, shape, collection=name))


def _placement(kind: str) -> Kind:
    return Kind(kind, "mesh-controller", Bucket("mesh-controller_assignments", "{node}.{module}", ("plan", kind)))


TABLE: tuple[Kind, ...] = (
    Kind("config", "mesh-config", Bucket("mesh-config_values", "{node}.{module}.{name}")),
    Kind("secret", "vault", Verb("vault.secret")),
    Kind("bound", "mesh-provisioner", Bucket("{provider}_bound", "{node}.{module}.{provision}[.{local}]")),
    Kind("consumers", "vault", Verb("vault.consumers")),
    _collection("collected", "{name}"),
    _collection("shell", "shell:{name}"),
    _collection("environment", "environment:{name}"),
    _collection("contribution", "contribution:{name}"),
    _placement("dir"),
    _placement("access"),
    _placement("port"),
    _placement("seat"),
    _placement("machine"),
)
"""The thirteen kinds, in the order of the specification."""


def wanted(table: tuple[Kind, ...] = TABLE) -> dict[str, bytes]:
    """What the registry bucket has to hold: key to value.

    Raises:
        ValueError: two rows of the table have the same kind.
    """
    content = {encode_token(kind.kind): kind.encode() for kind in table}
    if len(content) != len(table):
        raise ValueError("the table has the same kind twice")
    return content
