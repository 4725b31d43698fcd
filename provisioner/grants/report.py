"""What a run did, for a person and for a machine (mesh.md A5.11)."""

from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal, get_args

from attrs import AttrsInstance, asdict, define, field, frozen

from provisioner.errors import EXIT_FINDING, EXIT_OK, EXIT_REFUSED, EXIT_UNREACHABLE
from provisioner.grants.plan import Retained
from provisioner.printable import escaped

ConsumerWord = Literal["created", "set", "failed", "not_tried", "would_create", "would_set"]
RemovalWord = Literal["removed", "disabled", "failed", "withheld", "not_tried", "would_remove"]

CONSUMER_WORDS: tuple[ConsumerWord, ...] = get_args(ConsumerWord)
REMOVAL_WORDS: tuple[RemovalWord, ...] = get_args(RemovalWord)

_GOOD = frozenset({"created", "set", "removed", "would_create", "would_set", "would_remove"})
_WIDEST = 60
_WORDS = {
    "would_create": "would be created",
    "would_set": "would be set",
    "would_remove": "would be removed",
    "not_tried": "not tried",
}


@frozen
class ConsumerResult:
    """What became of one consumer. ``steps`` are what a dry run would do; ``verified`` what ``--verify`` found."""

    node: str
    module: str
    login: str
    result: ConsumerWord
    why: str = ""
    drift: tuple[str, ...] = ()
    verified: str = ""


@frozen
class RemovalResult:
    """What became of something that nobody asks for any more."""

    login: str
    result: RemovalWord
    what: str = "login"
    why: str = ""
    sessions_ended: int = 0
    database: str = ""
    databases: tuple[str, ...] = ()
    verified: str = ""


@define
class Report:
    """One run. ``refused`` and ``ended`` say why it did nothing or stopped early; ``stopped``: since it was told to."""

    provision: str
    dry_run: bool = False
    check: bool = False
    manifest_sha256: str = ""
    consumers: list[ConsumerResult] = field(factory=list)
    removed: list[RemovalResult] = field(factory=list)
    retained: list[Retained] = field(factory=list)
    notes: list[str] = field(factory=list)
    withheld: str = ""
    refused: str = ""
    ended: str = ""
    stopped: bool = False
    statements: int = 0
    seconds: float = 0.0

    @property
    def counts(self) -> dict[str, int]:
        """How many results of each kind; those that are always told are there even when nought."""
        words = [each.result for each in self.consumers] + [each.result for each in self.removed]
        return {"created": 0, "set": 0, "failed": 0, "removed": 0} | Counter[str](words)

    @property
    def drifted(self) -> bool:
        """The server is not as the manifest says."""
        return any(each.drift for each in self.consumers) or bool(self.removed)

    @property
    def exit_code(self) -> int:
        """0 to 3, as mesh.md A5.5 has them."""
        if self.refused:
            return EXIT_REFUSED
        if self.ended:
            return EXIT_FINDING if self.stopped else EXIT_UNREACHABLE
        results: Iterator[ConsumerResult | RemovalResult] = iter([*self.consumers, *self.removed])
        if self.withheld or any(each.result not in _GOOD for each in results):
            return EXIT_FINDING
        return EXIT_FINDING if self.check and self.drifted else EXIT_OK

    def document(self) -> dict[str, Any]:
        """The report as a JSON object."""
        return {
            "provision": self.provision,
            "dry_run": self.dry_run,
            "manifest_sha256": self.manifest_sha256,
            "consumers": [_told(each, "node", "module", "login", "result") for each in self.consumers],
            "removed": [_told(each, "login", "result", "sessions_ended") for each in self.removed],
            "retained": [_told(each, "role", "databases") for each in self.retained],
            "notes": self.notes,
            "counts": self.counts,
            "statements": self.statements,
            "seconds": round(self.seconds, 3),
            "exit_code": self.exit_code,
            **{key: text for key in ("withheld", "refused", "ended") if (text := getattr(self, key))},
        }

    def lines(self, *, brief: bool = False) -> Iterator[str]:
        """The report as text for a terminal; ``brief``: without consumers for whom all went as it always does."""
        told = [each for each in self.consumers if not brief or each.result != "set"]
        rows = [
            *(_row(f"{each.node} {each.module}", each.login, each) for each in told),
            *(_row(f"({each.what})", each.login, each) for each in self.removed),
        ]
        widths = [min(max((len(row[column]) for row in rows), default=0), _WIDEST) for column in (1, 2)]
        for result, who, login, more in rows:
            yield f"{result:<17} {who:<{widths[0]}}  {login:<{widths[1]}}  {more}".rstrip()
        for kept in self.retained:
            since = f" since {kept.since}" if kept.since else ""
            what = ", ".join(kept.databases) or "data in databases of others"
            yield f"{'kept':<17} {what}: owned by {kept.role}{since}"
        yield from (f"note: {note}" for note in self.notes)
        if self.withheld:
            yield f"Nothing was removed: {self.withheld}"
        if self.refused:
            yield f"Nothing was changed: {self.refused}"
        if self.ended:
            yield f"The run ended early: {self.ended}"
        if not self.refused:
            counted = ", ".join(f"{count} {_WORDS.get(word, word)}" for word, count in self.counts.items() if count)
            yield f"{self.provision}: {counted or 'nothing to do'} ({self.statements} statements, {self.seconds:.1f} s)"


def _row(who: str, login: str, each: ConsumerResult | RemovalResult) -> tuple[str, str, str, str]:
    more = [each.why]
    if isinstance(each, ConsumerResult):
        more += each.drift
    else:
        more.append(f"{each.sessions_ended} sessions ended" if each.sessions_ended else "")
        more.append(f"{each.database}: {', '.join(each.databases)}" if each.databases else "")
    more.append(each.verified)
    word = _WORDS.get(each.result, each.result)
    return word, escaped(who), escaped(login), "; ".join(filter(None, map(escaped, more)))


def _told(each: AttrsInstance, *always: str) -> dict[str, Any]:
    """An attrs instance without the fields that have nothing to tell."""
    return asdict(each, filter=lambda attribute, value: attribute.name in always or bool(value))
