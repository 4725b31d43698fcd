"""Which servers a request is for: the filter object, and matching it as a server does (wire-protocol 5.5)."""

import operator
from collections.abc import Iterable, Mapping
from typing import Any

import re2
from attrs import field, frozen

from provisioner.choria.encoding import Layer
from provisioner.errors import BadReply

_COMPARE = {
    ">=": operator.ge,
    "<=": operator.le,
    "<": operator.lt,
    ">": operator.gt,
    "!=": operator.ne,
    "==": operator.eq,
}
OPERATORS = (*_COMPARE, "=~")


@frozen
class Fact:
    """One condition on a fact. ``operator`` is one of ``OPERATORS``."""

    fact: str
    operator: str
    value: str


@frozen
class Filter:
    """Every non-empty section must match; an empty filter matches every server.

    Attributes:
        fact: all must hold.
        cf_class: configuration management classes the server must all have.
        agent: agents the server must all have.
        identity: identities, one of which must be the server's.
        compound: expressions, kept as they are. They are not evaluated: a filter that has one matches no server here.

    Entries written ``/like this/`` are RE2 patterns, found anywhere; others must be equal.
    """

    fact: tuple[Fact, ...] = ()
    cf_class: tuple[str, ...] = ()
    agent: tuple[str, ...] = ()
    identity: tuple[str, ...] = ()
    compound: tuple[Any, ...] = field(default=(), hash=False)

    def as_json(self) -> dict[str, Any]:
        """The object on the wire: always all five keys."""
        return {
            "fact": [{"fact": one.fact, "operator": one.operator, "value": one.value} for one in self.fact],
            "cf_class": list(self.cf_class),
            "agent": list(self.agent),
            "identity": list(self.identity),
            "compound": list(self.compound),
        }

    def matches(
        self,
        *,
        identity: str,
        agents: Iterable[str] = (),
        classes: Iterable[str] = (),
        facts: Mapping[str, Any] | None = None,
    ) -> bool:
        """Whether a server with these properties should answer."""
        known_agents, known_classes = tuple(agents), tuple(classes)
        return (
            not self.compound
            and (not self.identity or any(_matches(entry, (identity,)) for entry in self.identity))
            and all(_matches(entry, known_agents) for entry in self.agent)
            and all(_matches(entry, known_classes) for entry in self.cf_class)
            and all(_fact_holds(condition, facts or {}) for condition in self.fact)
        )


def decode(layer: Layer) -> Filter:
    """Reads a filter object; the ``agent`` key alone is optional (3.4).

    Raises:
        BadReply: a section is missing or of the wrong type, or an operator is unknown.
    """
    facts = []
    for each in layer.objects("fact"):
        condition = Layer(each, "fact filter")
        fact = Fact(condition.filled("fact"), condition.text("operator"), condition.text("value"))
        if fact.operator not in OPERATORS:
            raise BadReply(f"a fact filter has the operator {fact.operator[:10]!a}, not one of {' '.join(OPERATORS)}")
        facts.append(fact)
    return Filter(
        fact=tuple(facts),
        cf_class=layer.texts("cf_class"),
        agent=layer.texts("agent") if "agent" in layer else (),
        identity=layer.texts("identity"),
        compound=tuple(layer.objects("compound")),
    )


def _matches(entry: str, values: tuple[str, ...]) -> bool:
    if entry in values:
        return True
    if len(entry) > 1 and entry.startswith("/") and entry.endswith("/"):
        return any(_found(entry[1:-1], value) for value in values)
    return False


def _found(pattern: str, text: str) -> bool:
    """Whether an RE2 pattern is found in a text; one that doesn't compile never is."""
    options = re2.Options()
    options.log_errors = False
    try:
        return bool(re2.compile(pattern, options).search(text))
    except re2.error:
        return False


def _fact_holds(condition: Fact, facts: Mapping[str, Any]) -> bool:
    value: Any = facts
    for step in condition.fact.split("."):
        if not isinstance(value, Mapping) or step not in value:
            return False
        value = value[step]
    if isinstance(value, bool):
        value = str(value).lower()
    if not isinstance(value, str | int | float):
        return False
    if condition.operator == "=~":
        return _found(condition.value.removeprefix("/").removesuffix("/"), str(value))
    try:
        left: Any = float(value)
        right: Any = float(condition.value)
    except ValueError:
        left, right = str(value), condition.value
    return bool(_COMPARE[condition.operator](left, right))
