"""Two daemons and one lead, on a real nats-server with JetStream and a short time to live."""

import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio

from provisioner.bus.nats import NatsBus, Options, open_nats
from provisioner.leader import election
from provisioner.simulator.embedded import NatsServer
from provisioner.simulator.fleet import make_servers, open_fleet
from tests.integration.daemon import Daemon, running_daemon, write_helper

TTL = 4.0
pytestmark = pytest.mark.timeout(120)


@asynccontextmanager
async def bucket(server: NatsServer) -> AsyncIterator[NatsBus]:
    async def resolve() -> list[str]:
        return [server.url]

    async with open_nats(resolve, Options(name="test")) as bus:
        await bus.wait_connected()
        await make_bucket(bus)
        yield bus


async def make_bucket(bus: NatsBus) -> None:
    subject, body = election.create_bucket_request(TTL)
    answer = await bus.request(subject, body, timeout=5)
    assert b"error" not in answer.data


async def leading(daemon: Daemon, seconds: float = 30) -> float:
    """When the daemon was seen to lead."""
    await daemon.until(lambda status: status["role"] == "leader" and status["leader"], seconds)
    return time.monotonic()


@asynccontextmanager
async def two(nats: NatsServer, tmp_path: Path) -> AsyncIterator[tuple[Daemon, Daemon]]:
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(running_daemon(tmp_path / "a", nats.port, leader_election=True))
        await leading(first)
        second = await stack.enter_async_context(
            running_daemon(tmp_path / "b", nats.port, leader_election=True, site="other")
        )
        await second.until(lambda status: status["role"] == "standby")
        yield first, second


class Watch:
    """Samples both daemons: who may act, and whether ever both."""

    def __init__(self, *daemons: Daemon) -> None:
        self.daemons = daemons
        self.both = 0
        self.samples = 0

    async def run(self) -> None:
        while True:
            acting = 0
            for daemon in self.daemons:
                if daemon.process.poll() is None:
                    with trio.move_on_after(0.5), suppress(trio.BrokenResourceError, AssertionError):
                        acting += (await daemon.status())["leader"]
            self.both += acting > 1
            self.samples += 1
            await trio.sleep(0.02)


@pytest.mark.slow
async def test_a_killed_leader_is_replaced(nats_jetstream: NatsServer, tmp_path: Path) -> None:
    async with bucket(nats_jetstream), two(nats_jetstream, tmp_path) as (first, second):
        assert (await first.metrics())["paused"] == 0
        assert (await second.metrics())["paused"] == 1
        first.process.kill()
        killed = time.monotonic()
        assert await leading(second) - killed < TTL + 5
        assert "Became leader after winning election" in second.messages("warning")


async def test_a_leader_that_stops_politely_hands_over(nats_jetstream: NatsServer, tmp_path: Path) -> None:
    async with bucket(nats_jetstream), two(nats_jetstream, tmp_path) as (first, second), trio.open_nursery() as nursery:
        watch = Watch(first, second)
        nursery.start_soon(watch.run)
        first.process.terminate()
        told = time.monotonic()
        assert await leading(second) - told < 3
        with trio.fail_after(10):
            assert await first.process.wait() == 0
        assert watch.both == 0
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_a_stopped_leader_wakes_up_and_has_stood_down(nats_jetstream: NatsServer, tmp_path: Path) -> None:
    """SIGSTOP for twice the time to live with helpers running; after SIGCONT it hands nothing to the bus."""
    made = make_servers(4, version=1, token="s3cret", now=time.time())
    (tmp_path / "a").mkdir()
    write_helper(tmp_path / "a", '#!/bin/sh\ncat >/dev/null\nsleep 3\necho \'{"configuration":{"a":"b"}}\'\n')
    async with bucket(nats_jetstream) as bus, open_fleet(bus, made.servers) as fleet:
        async with two(nats_jetstream, tmp_path) as (first, second), trio.open_nursery() as nursery:
            await first.until(lambda status: len(status["at_work"]) == 4)
            first.process.send_signal(signal.SIGSTOP)
            await trio.sleep(2 * TTL)
            await leading(second)
            watch = Watch(first, second)
            first.process.send_signal(signal.SIGCONT)
            nursery.start_soon(watch.run)
            await first.until(lambda status: status["role"] == "standby")
            assert "Lost leadership: no renewal was confirmed in time" in first.messages("warning") or any(
                "no longer the leader" in line for line in first.messages()
            )
            await fleet.wait_until(lambda: all(s.node.received.done["restart"] for s in fleet.servers.values()))
            assert watch.both == 0
            assert {len(s.node.received.configurations) for s in fleet.servers.values()} == {1}
            assert (await first.metrics())["provisioned"] == 0
            nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_the_bucket_is_made_late_deleted_and_made_again(nats_jetstream: NatsServer, tmp_path: Path) -> None:
    async with running_daemon(tmp_path, nats_jetstream.port, leader_election=True) as daemon:
        status = await daemon.until(lambda status: "there is no bucket" in status["election"])
        assert status["role"] == "unknown"
        assert not status["leader"]
        async with bucket(nats_jetstream) as bus:
            made = time.monotonic()
            assert await leading(daemon) - made < 5
            await bus.request(f"{election.PLAIN_API}.STREAM.DELETE.{election.STREAM}", b"", timeout=5)
            await daemon.until(lambda status: not status["leader"])
            await make_bucket(bus)
            made = time.monotonic()
            assert await leading(daemon) - made < 5


@pytest.mark.slow
async def test_the_store_goes_away_and_the_leader_stands_down(nats_jetstream: NatsServer, tmp_path: Path) -> None:
    async with bucket(nats_jetstream):
        pass
    async with running_daemon(tmp_path, nats_jetstream.port, leader_election=True) as daemon:
        await leading(daemon)
        await nats_jetstream.kill()
        gone = time.monotonic()
        await daemon.until(lambda status: not status["leader"])
        # Nine tenths of the time to live after the last confirmed renewal; generous for a busy machine.
        assert time.monotonic() - gone < TTL + 3
        await nats_jetstream.restart()
        await leading(daemon, seconds=60)
