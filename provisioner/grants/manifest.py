"""The manifest: every consumer of one provision, what it asks for, where its credential is (mesh.md A5.1 and A5.4).

The rule that must never break: a login is taken away only on the strength of a manifest that was read completely and
understood completely. A manifest that can't be used at all raises; an entry that can't be used protects its consumer
from removal; an entry that doesn't even say whose it is suspends all removals.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal

from attrs import frozen

from provisioner import strictjson
from provisioner.errors import GrantError
from provisioner.grants import naming

Access = Literal["owner", "readwrite", "readonly"]
Identity = tuple[str, str]
"""A consumer is a module on a node: ``(node, module)``."""

MAX_BYTES = 4 * 1024 * 1024
DEFAULT_PROVISION = "database"

_VERSION = 1
_TOP = frozenset({"version", "provision", "consumers"})
_CONSUMER = frozenset({"node", "module", "asks", "secret"})
_ASKS = frozenset({"name", "access", "extensions"})
_MAX_EXTENSIONS = 64
_QUOTED = 80


@frozen
class Consumer:
    """One consumer that can be served, as far as its manifest entry goes.

    Attributes:
        node: the machine.
        module: the module on it.
        database: the database asked for; the login's own name unless the entry says otherwise.
        access: ``owner`` (its own database), ``readwrite`` or ``readonly`` (another consumer's).
        extensions: names asked for, in the order of the entry.
        secret: the path of its secret file as the entry gives it, or None for the usual place.
    """

    node: str
    module: str
    database: str
    access: Access = "owner"
    extensions: tuple[str, ...] = ()
    secret: str | None = None

    @property
    def identity(self) -> Identity:
        """The pair that a consumer is."""
        return self.node, self.module

    @property
    def login(self) -> str:
        """The role it logs in as."""
        return naming.login_name(self.node, self.module)


@frozen
class Refused:
    """An entry that can't be served. Its consumer is told so, and keeps the login that it has."""

    node: str
    module: str
    why: str

    @property
    def identity(self) -> Identity:
        """The pair that a consumer is."""
        return self.node, self.module

    @property
    def login(self) -> str:
        """The role it logs in as."""
        return naming.login_name(self.node, self.module)


@frozen
class Manifest:
    """What a manifest says.

    Attributes:
        consumers: those that can be served, in (node, module) order, owners of databases first.
        refused: entries that can't, with the reason.
        illegible: reasons for entries of which not even the consumer can be told. Any of them suspends removals.
        notes: what an operator should know and nothing is lost by.
    """

    consumers: tuple[Consumer, ...]
    refused: tuple[Refused, ...] = ()
    illegible: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def asked(self) -> frozenset[Identity]:
        """Everyone that the manifest asks for, whether it can be served or not: nobody of these is removed."""
        return frozenset([each.identity for each in self.consumers] + [each.identity for each in self.refused])


class _BadEntryError(Exception):
    """One entry's fault, while it is being read."""


def parse(data: bytes, *, provision: str) -> Manifest:
    """Reads a manifest.

    Args:
        data: the file's bytes.
        provision: the provision that this run serves. A manifest that names another is refused: laid at the wrong
            path it would take away another provision's logins.

    Raises:
        GrantError: the manifest can't be used, and nothing may be done on its strength.
    """
    if len(data) > MAX_BYTES:
        raise GrantError(f"is longer than {MAX_BYTES} bytes")
    if not data:
        raise GrantError('is empty (nobody is asked for with an empty list: {"consumers": []})')
    try:
        top = strictjson.loads(data, unique_keys=True)
    except strictjson.NotJSON as error:
        raise GrantError(f"is not JSON: {error}") from None
    if not isinstance(top, dict):
        raise GrantError("must be an object with a list called consumers")
    version = top.get("version", _VERSION)
    if type(version) is not int or version != _VERSION:
        raise GrantError(f"has a version other than {_VERSION} (found {_quoted(version)})")
    if "provision" in top and top["provision"] != provision:
        raise GrantError(f"is for the provision {_quoted(top['provision'])}, and this run serves {_quoted(provision)}")
    if "consumers" not in top:
        raise GrantError('has no list called consumers; {"consumers": []} says that nobody is asked for')
    entries = top["consumers"]
    if not isinstance(entries, list):
        raise GrantError("consumers must be a list")
    return _settle(entries, _unknown(top, _TOP, "the manifest"))


def _settle(entries: list[Any], notes: list[str]) -> Manifest:
    """Reads each entry, then lets those that contradict each other fail together."""
    consumers: list[Consumer] = []
    refused: list[Refused] = []
    illegible: list[str] = []
    for number, entry in enumerate(entries, 1):
        try:
            node, module = _identity(entry)
        except _BadEntryError as error:
            illegible.append(f"entry {number}: {error}")
            continue
        try:
            consumers.append(_consumer(node, module, entry))
        except _BadEntryError as error:
            refused.append(Refused(node, module, str(error)))
        notes += _unknown(entry, _CONSUMER, f"{node}.{module}")
    identities = Counter([each.identity for each in consumers] + [each.identity for each in refused])
    logins = Counter(naming.login_name(*identity) for identity in identities)
    owners = Counter(each.database for each in consumers if each.access == "owner" and identities[each.identity] == 1)
    served: list[Consumer] = []
    for each in consumers:
        if identities[each.identity] > 1:
            refused.append(Refused(each.node, each.module, "is in the manifest more than once"))
        elif logins[each.login] > 1:
            refused.append(Refused(each.node, each.module, f"another consumer has the same login, {each.login}"))
        elif each.access == "owner" and owners[each.database] > 1:
            refused.append(Refused(each.node, each.module, f"another consumer asks to own {each.database} as well"))
        else:
            served.append(each)
    return Manifest(
        consumers=tuple(sorted(served, key=lambda each: (each.access != "owner", each.identity))),
        refused=tuple(sorted({each.identity: each for each in refused}.values(), key=lambda each: each.identity)),
        illegible=tuple(illegible),
        notes=tuple(notes),
    )


def _identity(entry: object) -> Identity:
    if not isinstance(entry, dict):
        raise _BadEntryError("must be an object")
    found: list[str] = []
    for key, dots in (("node", True), ("module", False)):
        if key not in entry:
            raise _BadEntryError(f"has no {key}")
        if fault := naming.name_fault(entry[key], dots=dots):
            raise _BadEntryError(f"{key} {fault} (found {_quoted(entry[key])})")
        found.append(entry[key])
    return found[0], found[1]


def _consumer(node: str, module: str, entry: Mapping[str, Any]) -> Consumer:
    login = naming.login_name(node, module)
    if fault := naming.role_fault(login):
        raise _BadEntryError(fault)
    asks = entry.get("asks", {})
    if not isinstance(asks, dict):
        raise _BadEntryError("asks must be an object")
    if unknown := sorted(asks.keys() - _ASKS):
        raise _BadEntryError(f"asks for {_quoted(unknown[0])}, which this program doesn't know")
    database = asks.get("name", login)
    if fault := naming.database_fault(database):
        raise _BadEntryError(f"asks.name {fault} (found {_quoted(database)})")
    access = asks.get("access", "owner")
    if access not in ("owner", "readwrite", "readonly"):
        raise _BadEntryError(f"asks.access must be owner, readwrite or readonly (found {_quoted(access)})")
    if access != "owner" and "name" not in asks:
        raise _BadEntryError(f"asks.access {access} is to another consumer's database: asks.name must say which")
    secret = entry.get("secret")
    if secret is not None and (not isinstance(secret, str) or "\0" in secret):
        raise _BadEntryError("secret must be a path")
    return Consumer(node, module, database, access, _extensions(asks, access), secret)


def _extensions(asks: Mapping[str, Any], access: Access) -> tuple[str, ...]:
    names = asks.get("extensions", [])
    if not isinstance(names, list) or not all(isinstance(each, str) and each for each in names):
        raise _BadEntryError("asks.extensions must be a list of names")
    if len(names) > _MAX_EXTENSIONS:
        raise _BadEntryError(f"asks.extensions has more than {_MAX_EXTENSIONS} names")
    if names and access != "owner":
        raise _BadEntryError("asks.extensions is for the owner of a database")
    return tuple(dict.fromkeys(names))


def _unknown(found: Mapping[str, Any], known: frozenset[str], where: str) -> list[str]:
    """The mesh may grow: a key that this program doesn't know is told once and passed over."""
    return [f"{where}: the key {_quoted(key)} is not known and was passed over" for key in sorted(found.keys() - known)]


def _quoted(value: object) -> str:
    """A value as it stands in the file, printable and short."""
    text = strictjson.dumps(value)
    text = "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in text)
    return text if len(text) <= _QUOTED else f"{text[:_QUOTED]}…"
