"""Tables of configuration keys: one declaration drives reading, messages, documentation and tests."""

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import field, frozen

from provisioner.durations import parse_duration
from provisioner.errors import Fault
from provisioner.printable import escaped
from provisioner.strictyaml import Scalar, Tree

Reader = Callable[[Tree], Any]
"""Makes a value of what stands in the file; raises ValueError with the reason, or with no text at all."""


class Unfit(ValueError):
    """The value isn't what its key allows. The text is a reason beyond that, or empty."""


MAX_SHOWN = 100
"""Characters of a wrong value that a message repeats."""


@frozen(kw_only=True)
class Key:
    """One key.

    Attributes:
        name: as written in YAML; ``features.jwt`` is the key ``jwt`` of the mapping ``features``.
        read: makes its value.
        allowed: what it may be, ending the sentence "must be ...".
        default: its value when it is missing or empty; meaningless when ``required``.
        default_text: the same for people.
        doc: what it does, in Markdown, for the documentation.
        required: whether it must be given.
        secret: whether its value must never be shown.
        reload: whether a running daemon takes a changed value on SIGHUP.
        file: what of the file that it names must be there: ``program``, ``file``, ``directory``, ``parent`` (its
            directory), ``key`` (a file unless it is hex) or ``log``; empty for keys that name none.
    """

    name: str
    read: Reader
    allowed: str
    doc: str
    default: Any = None
    default_text: str = ""
    required: bool = False
    secret: bool = False
    reload: bool = True
    file: str = ""


@frozen
class Reading:
    """What a file said: a value for each key without a fault, and what is wrong or odd."""

    values: dict[str, Any] = field(factory=dict)
    written: dict[str, str] = field(factory=dict)
    """The text of each key that is given as one scalar, with a fault or not, and isn't secret."""
    faults: list[Fault] = field(factory=list)
    warnings: list[Fault] = field(factory=list)


def read_keys(tree: Tree, keys: Sequence[Key], file: str, *, dead: Mapping[str, str] | None = None) -> Reading:
    """Reads one file by its table of keys. A wrong key costs its own value only: every fault of the file is found.

    Args:
        tree: from ``strictyaml.load``.
        keys: the table.
        file: its name, for messages.
        dead: keys that once meant something, with what to say about them.
    """
    reading = Reading()
    known = {key.name: key for key in keys}
    if not isinstance(tree, dict):
        reading.faults.append(Fault(file, "", "must be a mapping of keys to values", _shown(tree)))
        return reading
    given: dict[str, Tree] = {}
    groups = {name.partition(".")[0] for name in known if "." in name}
    for name, value in tree.items():
        if name in groups and isinstance(value, dict):
            given.update({f"{name}.{inner}": each for inner, each in value.items()})
        elif name in groups:
            if not _empty(value):
                reading.faults.append(Fault(file, name, "must be a mapping of keys to values", _shown(value)))
        else:
            given[name] = value
    for name in given:
        if name not in known:
            about = (dead or {}).get(name) or _unknown(name, known)
            reading.warnings.append(Fault(file, escaped(name, MAX_SHOWN), about))
    for key in keys:
        _read_one(key, given.get(key.name), file, reading)
    return reading


def _read_one(key: Key, value: Tree | None, file: str, reading: Reading) -> None:
    if value is None or _empty(value):
        if key.required:
            reading.faults.append(Fault(file, key.name, f"is missing: must be {key.allowed}"))
        else:
            reading.values[key.name] = key.default
        return
    if isinstance(value, Scalar) and not key.secret:
        reading.written[key.name] = value.text
    try:
        reading.values[key.name] = key.read(value)
    except ValueError as error:
        reason = f"; {error}" if str(error) else ""
        found = None if key.secret else _shown(value)
        reading.faults.append(Fault(file, key.name, f"must be {key.allowed}{reason}", found))


def _unknown(name: str, known: Mapping[str, Key]) -> str:
    near = difflib.get_close_matches(name.lower(), known, n=1)
    return f"no such key, it is ignored; did you mean {near[0]}?" if near else "no such key, it is ignored"


def _empty(value: Tree) -> bool:
    return isinstance(value, Scalar) and (value.kind == "nothing" or not value.text.strip())


def _shown(value: Tree) -> str:
    if isinstance(value, Scalar):
        return escaped(value.text, MAX_SHOWN)
    return "a list" if isinstance(value, list) else "a mapping"


# --- readers -------------------------------------------------------------------------------------------------------


def text(value: Tree) -> str:
    """One line of text. What YAML takes for something else must be quoted: what would be sent isn't what is written."""
    if not isinstance(value, Scalar):
        raise Unfit
    if value.kind != "text":
        raise Unfit(f"YAML reads this as {value.kind}, put it in quotes")
    if not value.text.isprintable():
        raise Unfit("it has control characters")
    return value.text


def boolean(value: Tree) -> bool:
    """True or false, in any of YAML's words."""
    if not isinstance(value, Scalar):
        raise Unfit
    if value.kind != "true or false":
        quoted = value.text.lower() in {"true", "false", "yes", "no", "on", "off"}
        raise Unfit("it is text here, take the quotes away" if quoted else "")
    return value.text.lower() in {"true", "yes", "on"}


def integer(least: int, most: int) -> Reader:
    """A whole number within bounds, written in plain digits."""

    def read(value: Tree) -> int:
        if not isinstance(value, Scalar):
            raise Unfit
        if not re.fullmatch(r"[+-]?(0|[1-9][0-9]{0,17})", value.text):
            raise Unfit("write it in plain digits" if value.kind == "a number" else "")
        if value.kind == "text":
            raise Unfit("it is text here, take the quotes away")
        number = int(value.text)
        if not least <= number <= most:
            raise Unfit
        return number

    return read


def duration(least: float) -> Reader:
    """Seconds, from a text with a unit."""

    def read(value: Tree) -> float:
        if isinstance(value, Scalar) and value.kind.startswith("a number"):
            raise Unfit("it has no unit")
        seconds = parse_duration(text(value))
        if seconds < least:
            raise Unfit
        return seconds

    return read


def word(*words: str) -> Reader:
    """One of a few words, in any case."""

    def read(value: Tree) -> str:
        found = text(value).lower()
        if found not in words:
            raise Unfit
        return found

    return read


def texts(each: Callable[[str], str]) -> Reader:
    """A list of texts; ``each`` checks and returns one, and raises ValueError."""

    def read(value: Tree) -> tuple[str, ...]:
        if not isinstance(value, list):
            raise Unfit
        found = []
        for number, item in enumerate(value, 1):
            try:
                found.append(each(text(item)))
            except ValueError as error:
                raise Unfit(f"entry {number} ({_shown(item)}): {str(error) or 'not such a text'}") from None
        return tuple(found)

    return read
