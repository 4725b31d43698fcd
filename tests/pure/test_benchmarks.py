"""What a benchmark believes: only runs that did their work once count, and a goal that isn't met says so."""

import pytest

from benchmarks import report
from benchmarks.fleet import Received

GOOD = {"plugin.choria.server.provision": "0"}


def test_a_server_that_was_configured_and_restarted_once_counts() -> None:
    assert Received([GOOD], restarts=1).once


@pytest.mark.parametrize(
    "wrong",
    [
        Received([], restarts=1),
        Received([GOOD, GOOD], restarts=1),
        Received([GOOD], restarts=0),
        Received([GOOD], restarts=2),
        Received([GOOD], restarts=1, wrong=1),
        Received([{"plugin.choria.server.provision": "1"}], restarts=1),
        Received([{"identity": "x"}], restarts=1),
    ],
)
def test_any_other_does_not(wrong: Received) -> None:
    assert not wrong.once


CASE = {"program": "", "loglevel": "warn", "helper": "sh", "version": 1, "transport": "plain", "signed": False}


@pytest.mark.parametrize(
    ("ratio", "own", "words"), [(0.38, 1.99, ["yes", "yes", "yes"]), (0.37, 2.0, ["**no**", "yes", "**no**"])]
)
def test_a_goal_is_met_or_not(ratio: float, own: float, words: list[str]) -> None:
    noisy = {"ratios": [0.2, ratio, 0.5], "rates": [200.0, 300.0, 400.0], "own_cpus": [1.5, own, 3.0]}
    table = report.goals({"cases": [CASE | noisy]})
    assert f"| {ratio:.3f} (0.200 to 0.500) |" in table
    assert [line.split(" | ")[-1].rstrip(" |") for line in table.splitlines()[2:]] == words


def test_a_peer_is_no_goal_of_ours() -> None:
    peer = CASE | {"program": "/usr/bin/choria-provisioner", "ratios": [0.1], "rates": [60.0], "own_cpus": [20.0]}
    assert report.goals({"cases": [peer]}).count("\n") == 2
