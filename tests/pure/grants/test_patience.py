"""What passes is tried again, often enough to win against somebody who never rests, and not for ever."""

import pytest

from provisioner.errors import StatementRefused
from provisioner.grants.postgres import Link


class Refusing:
    """An action that is refused so many times, by a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, refusals: int, sqlstate: str) -> None:
        self.now = 0.0
        self.tries = 0
        self.refusals = refusals
        self.sqlstate = sqlstate
        monkeypatch.setattr("provisioner.grants.postgres.time.monotonic", lambda: self.now)
        monkeypatch.setattr(Link, "pause", self.pause)

    def pause(self, seconds: float) -> None:
        self.now += seconds

    def __call__(self) -> str:
        self.tries += 1
        if self.tries <= self.refusals:
            raise StatementRefused("tuple concurrently updated", self.sqlstate)
        return "done"


def test_a_hundred_lost_races_are_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """One try in eight succeeds against a login that changes its own role without a rest: 25 tries lost 3 in 100."""
    action = Refusing(monkeypatch, 99, "XX000")
    assert Link({}).patiently(action) == "done"
    assert action.tries == 100


def test_what_never_passes_ends_after_five_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    action = Refusing(monkeypatch, 10**9, "55P03")
    with pytest.raises(StatementRefused, match="tuple concurrently updated"):
        Link({}).patiently(action)
    assert 5 < action.now <= 5.05
    assert 100 < action.tries < 400  # 200 on the average


@pytest.mark.parametrize("sqlstate", ["42501", "42P01", "", "23505"])
def test_what_does_not_pass_is_not_tried_again(monkeypatch: pytest.MonkeyPatch, sqlstate: str) -> None:
    action = Refusing(monkeypatch, 1, sqlstate)
    with pytest.raises(StatementRefused):
        Link({}).patiently(action)
    assert action.tries == 1
