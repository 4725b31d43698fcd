"""What is remembered of servers after their cycles: the last outcomes, for the operator and against upgrade loops.

Pure and bounded: nothing here decides who is worked on; losing it costs nothing but memory of the past.
"""

from collections import Counter, OrderedDict, deque
from typing import Any

from attrs import evolve, frozen

from provisioner.errors import UpgradeLoop

RECENT = 200
"""Outcomes shown, newest last."""

REMEMBERED = 20_000
"""Servers whose last outcome is kept: some 10 MB."""

UPGRADES_WITHOUT_CHANGE = 3
"""After so many accepted upgrades of one server at one version the next is refused: it would go on for ever."""

_TEXT = 300
"""Characters of an outcome's text that are kept."""


@frozen
class Finished:
    """One cycle that ended.

    Attributes:
        identity: the server.
        outcome: a reason word.
        step: where it ended, ``""`` for none.
        text: one line, bounded, without secrets.
        at: unix time in seconds of the end.
        seconds: how long the cycle took.
        attempt: which try it was since the last success, from 1.
        reason: the helper's own word, or ``""``.
    """

    identity: str
    outcome: str
    step: str
    text: str
    at: float
    seconds: float
    attempt: int
    reason: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For JSON; seconds are rounded to milliseconds."""
        return {
            "identity": self.identity,
            "outcome": self.outcome,
            "step": self.step,
            "text": self.text,
            "at": round(self.at, 3),
            "seconds": round(self.seconds, 3),
            "attempt": self.attempt,
            "reason": self.reason,
        }


class History:
    """The past of one service, over all its terms."""

    def __init__(self) -> None:
        self.recent: deque[Finished] = deque(maxlen=RECENT)
        self.totals: Counter[str] = Counter()
        self._last: OrderedDict[str, Finished] = OrderedDict()
        self._upgrades: OrderedDict[str, tuple[str, int]] = OrderedDict()

    def attempt(self, identity: str) -> int:
        """Which try the next cycle of this server is since its last success, from 1."""
        last = self._last.get(identity)
        return 1 if last is None or last.outcome == "provisioned" else last.attempt + 1

    def add(self, finished: Finished) -> None:
        """Remembers the end of a cycle."""
        finished = _bounded(finished)
        self.recent.append(finished)
        self.totals[finished.outcome] += 1
        self._last.pop(finished.identity, None)
        self._last[finished.identity] = finished
        if len(self._last) > REMEMBERED:
            self._last.popitem(last=False)

    def last(self, identity: str) -> Finished | None:
        """The last outcome of a server, if it is remembered."""
        return self._last.get(identity)

    def allow_upgrade(self, identity: str, version: str) -> None:
        """Refuses an upgrade of a server that was upgraded again and again and still has the same version.

        Raises:
            UpgradeLoop: after three upgrades without a change.
        """
        known, times = self._upgrades.get(identity, (version, 0))
        if known != version:
            self._upgrades.pop(identity, None)
        elif times >= UPGRADES_WITHOUT_CHANGE:
            raise UpgradeLoop(f"{times} upgrades were accepted and the version is still {version}")

    def upgraded(self, identity: str, version: str) -> None:
        """An upgrade of a server at ``version`` was accepted."""
        known, times = self._upgrades.pop(identity, (version, 0))
        self._upgrades[identity] = (version, times + 1 if known == version else 1)
        if len(self._upgrades) > REMEMBERED:
            self._upgrades.popitem(last=False)


def _bounded(finished: Finished) -> Finished:
    if len(finished.text) <= _TEXT:
        return finished
    return evolve(finished, text=finished.text[:_TEXT] + "…")
