"""A new configuration under a running service: whole or not at all; running cycles finish under the old one."""

from pathlib import Path

import pytest
import trio
from attrs import evolve
from trio.testing import MockClock, wait_all_tasks_blocked

from provisioner.bus.memory import MemoryBroker
from provisioner.config import Features
from provisioner.errors import ConfigError
from provisioner.secret import Secret
from provisioner.testing import ScriptedHelper, ScriptedNode
from tests.flow.conftest import CONFIG, Serve


async def test_the_next_cycle_uses_the_new_and_the_running_one_the_old(
    serve: Serve, broker: MemoryBroker, clock: MockClock
) -> None:
    first, second = ScriptedNode("n1.example.net"), ScriptedNode("n2.example.net", discoverable=False)
    async with (
        first.on(broker.connect()),
        second.on(broker.connect()),
        serve(helper=ScriptedHelper(seconds=5)) as running,
    ):
        await first.called("inventory")
        await trio.sleep(1)
        assert running.service.reload(evolve(CONFIG, token=Secret("new"))) == []
        second.start()
        await running.outcomes(2)
        assert first.calls[-1] == ("restart", {"splay": 1, "token": "s3cret"})
        assert second.calls[-1] == ("restart", {"splay": 1, "token": "new"})


async def test_what_cannot_change_is_named_and_left(serve: Serve, broker: MemoryBroker, clock: MockClock) -> None:
    async with serve() as running:
        await wait_all_tasks_blocked()
        new = evolve(CONFIG, monitor_port=1234, leader_election=True, workers=9, interval=120.0)
        assert running.service.reload(new) == ["leader_election", "monitor_port", "workers"]
        assert running.service.config == evolve(CONFIG, interval=120.0)
        assert running.service.term is not None
        assert running.service.term.crew.roster.interval == 120.0


async def test_a_bad_one_changes_nothing(serve: Serve, broker: MemoryBroker, clock: MockClock) -> None:
    async with serve() as running:
        bad = evolve(CONFIG, features=Features(jwt=True), jwt_verify_cert=str(Path("/nowhere/key.pem")), interval=120.0)
        with pytest.raises(ConfigError, match=r"/nowhere/key\.pem"):
            running.service.reload(bad)
        assert running.service.config == CONFIG
