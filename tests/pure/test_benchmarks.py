"""What a benchmark believes: only runs that did their work once count, and a goal that isn't met says so."""

from random import Random

import pytest

from benchmarks import report
from benchmarks.fleet import once
from provisioner.simulator.node import Node
from provisioner.simulator.server import Server, server_wire
from provisioner.simulator.site import Site

GOOD = {"plugin.choria.server.provision": "0"}


def server(configurations: list[dict[str, str]], *, configured: int = 1, asked: int = 1, restarted: int = 1) -> Server:
    node = Node("n1.example.net", Site(token="", jwt=""), Random(0))
    node.received.configurations.extend(configurations)
    node.received.asked.update(configure=configured, restart=asked)
    node.received.done.update(configure=configured, restart=restarted)
    return Server(node, server_wire(1))


def test_a_server_that_was_configured_and_restarted_once_counts() -> None:
    assert once(server([GOOD]))


@pytest.mark.parametrize(
    "wrong",
    [
        server([]),
        server([GOOD, GOOD], configured=2),
        server([GOOD], configured=2),
        server([GOOD], asked=2),
        server([GOOD], restarted=0),
        server([{"plugin.choria.server.provision": "1"}]),
    ],
)
def test_any_other_does_not(wrong: Server) -> None:
    assert not once(wrong)


CASE = {"program": "", "loglevel": "warn", "helper": "sh", "version": 1, "transport": "plain", "signed": False}


@pytest.mark.parametrize(("ratio", "own", "words"), [(0.38, 1.99, ["yes", "yes"]), (0.37, 2.0, ["**no**", "**no**"])])
def test_a_goal_is_met_or_not(ratio: float, own: float, words: list[str]) -> None:
    table = report.goals({"cases": [CASE | {"ratio": ratio, "rate": 300.0, "own_cpu": own}]})
    assert [line.split(" | ")[-1].rstrip(" |") for line in table.splitlines()[2:]] == words


def test_a_peer_is_no_goal_of_ours() -> None:
    peer = CASE | {"program": "/usr/bin/choria-provisioner", "ratio": 0.1, "rate": 60.0, "own_cpu": 20.0}
    assert report.goals({"cases": [peer]}).count("\n") == 2
