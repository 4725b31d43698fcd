"""Several provisioners on one real broker, ours and a Go one: who leads, how soon another does, never two at once."""

import json
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from tests.interop.choria import LEADER_TTL, Broker, Candidate
from tests.interop.conftest import Measured, StartDaemon, StartServer
from tests.interop.daemon import Daemon
from tests.interop.process import Process, stop_all, until
from tests.interop.raw import Connection

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1200)]

only_certificates = pytest.mark.parametrize("version", [1], ids=["v1"])
only_issuer = pytest.mark.parametrize("version", [2], ids=["v2"])


async def seconds_until(condition: Callable[[], object], what: str) -> float:
    began = trio.current_time()
    await until(condition, what)
    return trio.current_time() - began


def senders(spy: Connection) -> set[str]:
    """Who sent the Choria messages that were heard."""
    headers = [json.loads(heard.data)["headers"] for heard in spy.heard if b'"headers"' in heard.data]
    return {header.get("mc_sender") or header.get("sender") for header in headers}


async def pair(broker: Broker, start_daemon: StartDaemon) -> tuple[Daemon, Daemon]:
    """Two of ours: the first leads, the second stands by."""
    await trio.to_thread.run_sync(broker.wait_for_bucket)
    first = start_daemon("first", identity="first.example.net", leader_election=True)
    await until(first.leads, "the first leads")
    second = start_daemon("second", identity="second.example.net", leader_election=True)
    await until(lambda: second.status().get("role") == "standby", "the second stands by")
    return first, second


class Sampler:
    """Asks two daemons in turn, about every 20 ms, whether they may act; counts the times when both did for sure.

    Both did when the one said so before and after the other did.
    """

    def __init__(self, first: Daemon, second: Daemon) -> None:
        self.daemons = (first, second)
        self.samples = self.both = 0

    async def run(self) -> None:
        before = False
        while True:
            for daemon, other in (self.daemons, self.daemons[::-1]):
                acts = await trio.to_thread.run_sync(self._acts, daemon)
                if before and acts:
                    again = await trio.to_thread.run_sync(self._acts, other)
                    self.both += again
                before = acts
                self.samples += 1
            await trio.sleep(0.02)

    @staticmethod
    def _acts(daemon: Daemon) -> bool:
        # One that was stopped or killed does not act, and does not answer.
        return daemon.process.code() is None and daemon.leads()


async def sampled(first: Daemon, second: Daemon, story: Callable[[], Awaitable[None]]) -> Sampler:
    sampler = Sampler(first, second)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sampler.run)
        await story()
        nursery.cancel_scope.cancel()
    return sampler


async def test_a_killed_leader_is_replaced(
    broker: Broker, start_daemon: StartDaemon, start_server: StartServer, measured: Measured
) -> None:
    first, second = await pair(broker, start_daemon)
    first.process.kill()
    took = await seconds_until(second.leads, "the second leads")
    measured("seconds until another leads, SIGKILL", took)
    assert took < LEADER_TTL + 5
    server = start_server("killed.example.net")
    await until(server.is_member, "a server provisioned by the second")


async def test_a_leader_that_is_told_to_stop_hands_over(
    broker: Broker, start_daemon: StartDaemon, measured: Measured
) -> None:
    first, second = await pair(broker, start_daemon)

    async def story() -> None:
        first.process.signal(signal.SIGTERM)
        took = await seconds_until(second.leads, "the second leads")
        measured("seconds until another leads, SIGTERM", took)
        assert took < 3
        await until(lambda: first.process.code() is not None, "the first has ended")

    sampler = await sampled(first, second, story)
    assert first.process.code() == 0
    assert sampler.both == 0
    assert sampler.samples > 0


async def test_a_leader_that_was_stopped_hands_nothing_to_the_bus(
    broker: Broker, start_daemon: StartDaemon, start_server: StartServer, measured: Measured
) -> None:
    """SIGSTOP for twice the time to live, in the middle of a cycle whose helper goes on and answers."""
    first, second = await pair(broker, start_daemon)
    with Connection.provisioner(broker) as spy:
        spy.subscribe("provisioning.>")
        server = start_server("stopped.example.net", do="slow")
        await until(lambda: first.at_helper(server.identity), "the helper of the first at work")

        async def story() -> None:
            first.process.signal(signal.SIGSTOP)
            stopped = trio.current_time()
            took = await seconds_until(second.leads, "the second leads")
            measured("seconds until another leads, SIGSTOP", took)
            assert took < LEADER_TTL + 5
            await trio.sleep_until(stopped + 2 * LEADER_TTL)
            spy.flush()
            assert first.identity in senders(spy)
            spy.heard.clear()
            first.process.signal(signal.SIGCONT)
            await until(lambda: first.status().get("role") == "standby", "the first knows that it does not lead")
            await until(lambda: second.ended("locked"), "the second finds the server locked by the first")
            spy.flush()

        sampler = await sampled(first, second, story)
        assert first.identity not in senders(spy)
    assert sampler.both == 0
    assert not server.config.exists()
    assert first.ended("provisioned") == 0


@only_certificates
async def test_a_go_candidate_and_ours_elect_among_each_other(
    broker: Broker, start_daemon: StartDaemon, processes: list[Process], tmp_path: Path, measured: Measured
) -> None:
    await trio.to_thread.run_sync(broker.wait_for_bucket)
    other = Candidate(broker, "go.example.net", tmp_path / "go")
    processes.append(other.process)
    other.process.start()
    await until(lambda: other.process.said("harness: won"), "the Go candidate leads")
    ours = start_daemon(identity="ours.example.net", leader_election=True)
    await until(lambda: ours.status().get("role") == "standby", "ours stands by")
    other.process.kill()
    took = await seconds_until(ours.leads, "ours leads")
    measured("seconds until ours leads, Go killed", took)
    assert took < LEADER_TTL + 5
    # A Go standby of ours: it does not win while we renew, and does when we have stopped politely.
    other.process.log.unlink()
    other.process.start()
    await until(lambda: other.process.said("Connected to"), "the Go candidate campaigns")
    until_won = trio.current_time() + 2 * LEADER_TTL
    while trio.current_time() < until_won:
        assert not other.process.said("harness: won")
        assert ours.leads()
        await trio.sleep(0.2)
    ours.process.signal(signal.SIGTERM)
    took = await seconds_until(lambda: other.process.said("harness: won"), "the Go candidate leads again")
    measured("seconds until Go leads, ours stopped", took)
    assert ours.process.code() == 0


@only_issuer
async def test_a_leader_waits_for_its_bucket_and_comes_back_after_the_broker(
    version: int,
    harness: Path,
    tmp_path: Path,
    start_daemon: StartDaemon,
    start_server: StartServer,
    processes: list[Process],
    measured: Measured,
) -> None:
    """Started with its broker: leads within 5 s of the bucket. The broker is killed and returns: leads again."""
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    broker = Broker(version, fresh, harness)
    processes.append(broker.process)
    try:
        await trio.to_thread.run_sync(broker.start)
        began = time.monotonic()
        daemon = start_daemon("waiting", broker, leader_election=True)
        await until(lambda: daemon.status().get("role") == "unknown", "it says that it does not know")
        await trio.to_thread.run_sync(broker.wait_for_bucket)
        measured("seconds until the bucket", time.monotonic() - began)
        took = await seconds_until(daemon.leads, "it leads")
        measured("seconds until it leads, bucket made", took)
        assert took < 5
        await trio.to_thread.run_sync(broker.process.kill)
        await until(lambda: not daemon.leads(), "it has stood down")
        await trio.to_thread.run_sync(broker.restart)
        took = await seconds_until(daemon.leads, "it leads again")
        measured("seconds until it leads, broker restarted", took)
        server = start_server("restarted.example.net", broker)
        await until(server.is_member, "a server provisioned after the restart")
    finally:
        stop_all([broker.process])


@only_issuer
async def test_two_share_a_fleet_and_one_takes_over(
    broker: Broker, start_daemon: StartDaemon, start_server: StartServer
) -> None:
    """``sharing``: both work, each server is configured once; what the killed one left is done by the other."""
    first = start_daemon("first", identity="first.example.net", sharing=True)
    second = start_daemon("second", identity="second.example.net", sharing=True)
    for daemon in (first, second):
        await until(lambda daemon=daemon: daemon.metric("members") == 2, "each sees the other")  # type: ignore[misc]
    servers = [start_server(f"shared{number}.example.net") for number in range(10)]
    for server in servers:
        await until(server.is_member, f"{server.identity} connected as a member")
    assert first.ended("provisioned") + second.ended("provisioned") == 10
    assert first.ended("provisioned") > 0
    assert second.ended("provisioned") > 0
    assert sum(len(daemon.inputs(server.identity)) for daemon in (first, second) for server in servers) == 10
    first.process.kill()
    await until(lambda: second.metric("members") == 1, "the second is alone")
    late = [start_server(f"late{number}.example.net") for number in range(5)]
    for server in late:
        await until(server.is_member, f"{server.identity} connected as a member")
    assert all(second.inputs(server.identity) for server in late)
