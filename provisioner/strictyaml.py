"""YAML that an operator wrote: read as a tree of what stands there, within bounds, or refused with place and reason.

YAML guesses types (``no`` is false, ``1:30`` is ninety, ``08`` is text and ``07`` a number). The tree keeps the written
text beside the guess, so that whoever wants a certain type can say what was found there and why it isn't that.
"""

import re
from typing import NoReturn

import yaml
from attrs import frozen
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

MAX_CHARACTERS = 1024 * 1024
"""A configuration file has a few kilobytes."""

MAX_NODES = 50_000
"""Values in one file, an alias counted at each place where it is used: that is what an alias bomb multiplies."""

MAX_DEPTH = 20

_KINDS = {
    "str": "text",
    "int": "a number",
    "float": "a number with a point",
    "bool": "true or false",
    "null": "nothing",
    "timestamp": "a date",
}


_QUOTED = re.compile(r"""'[^']*'|"[^"]*\"""")


def _veiled(quoted: re.Match[str]) -> str:
    # Marks of syntax such as ']' or '<stream end>' stay.
    return quoted[0] if len(quoted[0]) <= 4 or quoted[0][1] == "<" else "…"


class NotYAML(ValueError):
    """The text is not YAML that we take. Says where; quotes nothing of the file, which may hold secrets."""


@frozen
class Scalar:
    """One value.

    Attributes:
        kind: what YAML takes it for: ``text``, ``a number``, ``a number with a point``, ``true or false``,
            ``nothing``, ``a date``.
        text: as it is written, quotes resolved.
        line: where, from 1.
    """

    kind: str
    text: str
    line: int


Tree = Scalar | list["Tree"] | dict[str, "Tree"]


def load(text: str) -> Tree:
    """Reads one YAML document.

    Returns:
        its tree; the keys of each mapping are texts as written, and none comes twice.

    Raises:
        NotYAML: not YAML, more than one document, a key twice, a tag other than YAML's own scalars, a merge key, over
            ``MAX_CHARACTERS``, ``MAX_NODES`` or ``MAX_DEPTH``.
    """
    if len(text) > MAX_CHARACTERS:
        raise NotYAML(f"it has over {MAX_CHARACTERS} characters")
    try:
        # Composing makes nodes only: an alias is the same node again, nothing is expanded or constructed.
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        # The library quotes names and characters of the file; a password may be among them.
        problem = error.problem or "it can't be read"
        if problem.startswith("but "):
            problem = f"{error.context}, {problem}"
        problem = _QUOTED.sub(_veiled, problem)
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise NotYAML(line + problem) from None
    except yaml.YAMLError:
        raise NotYAML("it has characters that YAML doesn't allow") from None
    except RecursionError:
        raise NotYAML("it is nested too deep") from None
    return {} if root is None else _Walk().tree(root, 0)


class _Walk:
    def __init__(self) -> None:
        self.left = MAX_NODES

    def tree(self, node: Node, depth: int) -> Tree:
        self.left -= 1
        if self.left < 0:
            raise NotYAML(f"it has over {MAX_NODES} values, aliases counted where they are used")
        if depth > MAX_DEPTH:
            raise NotYAML("it is nested too deep")
        tag = node.tag.removeprefix("tag:yaml.org,2002:")
        if isinstance(node, ScalarNode) and tag in _KINDS:
            return Scalar(_KINDS[tag], node.value, node.start_mark.line + 1)
        if isinstance(node, SequenceNode) and tag == "seq":
            return [self.tree(each, depth + 1) for each in node.value]
        if isinstance(node, MappingNode) and tag == "map":
            return self._mapping(node, depth)
        return _refuse(node, "a tag is not taken here")

    def _mapping(self, node: MappingNode, depth: int) -> dict[str, Tree]:
        found: dict[str, Tree] = {}
        for key, value in node.value:
            if not isinstance(key, ScalarNode):
                _refuse(key, "a key must be a plain word")
            if key.tag.endswith(":merge"):
                _refuse(key, "merge keys (<<) are not taken here")
            if key.value in found:
                _refuse(key, f"the key {key.value[:60]!a} is there twice")
            found[key.value] = self.tree(value, depth + 1)
        return found


def _refuse(node: Node, problem: str) -> NoReturn:
    raise NotYAML(f"line {node.start_mark.line + 1}: {problem}")
