"""Each fault of the broker under a running leader: it recovers without a restart. The times are in docs/recovery.md."""

import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from provisioner.bus.login import Credentials, Options
from provisioner.bus.nats import open_nats
from provisioner.leader import election
from provisioner.secret import Secret
from provisioner.simulator.embedded import NatsServer, nats_server
from provisioner.simulator.fleet import make_servers, open_fleet
from tests.integration.daemon import Daemon, running_daemon

TTL = 6.0
pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@asynccontextmanager
async def leader(server: NatsServer, tmp_path: Path) -> AsyncIterator[Daemon]:
    async def resolve() -> list[str]:
        return [server.url]

    async with open_nats(resolve, Options(name="test")) as bus:
        await bus.wait_connected()
        await bus.request(*election.create_bucket_request(TTL), timeout=5)
    async with running_daemon(tmp_path, server.port, leader_election=True) as daemon:
        await daemon.until(lambda status: status["leader"])
        yield daemon


async def provisions(daemon: Daemon, server: NatsServer, *, first: int, since: float) -> float:
    """Puts a new server there and waits until it is provisioned; the seconds since ``since``."""

    async def resolve() -> list[str]:
        return [server.url]

    made = make_servers(1, version=1, token="s3cret", now=time.time(), domain=f"r{first}.example.net")
    async with open_nats(resolve, Options(name="fleet")) as bus:
        await bus.wait_connected()
        async with open_fleet(bus, made.servers) as fleet, trio.open_nursery() as nursery:

            async def announce() -> None:
                while True:
                    await fleet.announce()
                    await trio.sleep(1)

            nursery.start_soon(announce)
            with trio.fail_after(90):
                await fleet.wait_until(lambda: made.servers[0].node.received.done["restart"] == 1)
            nursery.cancel_scope.cancel()
    return time.monotonic() - since


def told(record_property: object, fault: str, seconds: float) -> None:
    record_property(fault, round(seconds, 1))  # type: ignore[operator]
    print(f"recovery: {fault}: {seconds:.1f} s")


async def test_the_server_is_killed_and_restarted(
    nats_jetstream: NatsServer, tmp_path: Path, record_property: object
) -> None:
    async with leader(nats_jetstream, tmp_path) as daemon:
        await nats_jetstream.kill()
        await daemon.until(lambda status: not status["connected"])
        await nats_jetstream.restart()
        seconds = await provisions(daemon, nats_jetstream, first=1, since=time.monotonic())
        told(record_property, "killed and restarted", seconds)
        assert await daemon.ends() == 0


async def test_the_server_stands_still_and_goes_on(
    nats_jetstream: NatsServer, tmp_path: Path, record_property: object
) -> None:
    async with leader(nats_jetstream, tmp_path) as daemon:
        assert nats_jetstream.process is not None
        nats_jetstream.process.send_signal(signal.SIGSTOP)
        try:
            # The leader stands down by its own clock, whatever the connection looks like.
            await daemon.until(lambda status: not status["leader"], seconds=30)
        finally:
            nats_jetstream.process.send_signal(signal.SIGCONT)
        seconds = await provisions(daemon, nats_jetstream, first=2, since=time.monotonic())
        told(record_property, "stood still", seconds)
        assert await daemon.ends() == 0


async def test_told_to_stop_while_the_server_stands_still(nats_jetstream: NatsServer, tmp_path: Path) -> None:
    async with leader(nats_jetstream, tmp_path) as daemon:
        assert nats_jetstream.process is not None
        nats_jetstream.process.send_signal(signal.SIGSTOP)
        try:
            assert await daemon.ends(seconds=5) == 0
        finally:
            nats_jetstream.process.send_signal(signal.SIGCONT)


async def test_the_stores_disk_is_full_and_has_room_again(tmp_path: Path, record_property: object) -> None:
    config = "jetstream { max_file_store: 1MB, max_memory_store: 1MB }"
    async with nats_server(config, jetstream=True) as server, leader(server, tmp_path) as daemon:

        async def resolve() -> list[str]:
            return [server.url]

        async with open_nats(resolve, Options(name="hog")) as bus:
            await bus.wait_connected()
            body = b'{"name":"HOG","subjects":["hog"],"retention":"limits","storage":"file","num_replicas":1}'
            assert b"error" not in (await bus.request("$JS.API.STREAM.CREATE.HOG", body, timeout=5)).data
            full = b""
            while b"error" not in full:
                full = (await bus.request("hog", b"x" * 50_000, timeout=5)).data
            status = await daemon.until(lambda status: not status["leader"], seconds=30)
            assert status["connected"]
            await bus.request("$JS.API.STREAM.DELETE.HOG", b"", timeout=5)
        seconds = await provisions(daemon, server, first=3, since=time.monotonic())
        told(record_property, "store full", seconds)
        assert any("The election's store can't be used" in line for line in daemon.messages("warning"))
        assert await daemon.ends() == 0


async def test_jetstream_is_gone_and_comes_back(tmp_path: Path, record_property: object) -> None:
    """An event that arrives while nobody leads: its server is provisioned within 5 s of the next term."""
    async with nats_server(jetstream=True) as server, leader(server, tmp_path) as daemon:

        async def resolve() -> list[str]:
            return [server.url]

        async with open_nats(resolve, Options(name="fleet")) as bus:
            await bus.wait_connected()
            await bus.request(f"{election.PLAIN_API}.STREAM.DELETE.{election.STREAM}", b"", timeout=5)
            await daemon.until(lambda status: not status["leader"])
            made = make_servers(1, version=1, token="s3cret", now=time.time())
            async with open_fleet(bus, made.servers) as fleet:
                await fleet.announce()
                await bus.request(*election.create_bucket_request(TTL), timeout=5)
                since = time.monotonic()
                await daemon.until(lambda status: status["leader"])
                led = time.monotonic()
                with trio.fail_after(5):
                    await fleet.wait_until(lambda: made.servers[0].node.received.done["restart"] == 1)
                told(record_property, "bucket deleted and made again", led - since)


USERS = 'authorization { users = [ { user: provisioner, password: "%s" }, { user: fleet, password: "f" } ] }'


async def test_the_account_is_taken_away_and_given_back(tmp_path: Path, record_property: object) -> None:
    async with nats_server(USERS % "pw") as server:
        async with running_daemon(tmp_path, server.port, broker_provisioning_password="pw") as daemon:
            await daemon.until(lambda status: status["connected"])
            (server.directory / "nats.conf").write_text(USERS % "another")
            assert server.process is not None
            server.process.send_signal(signal.SIGHUP)
            status = await daemon.until(lambda status: "Authorization Violation" in status["connection_error"])
            assert "user provisioner with a password (****)" in status["connection_error"]
            code, _ = await daemon.get("/healthz")
            assert code == 200
            (server.directory / "nats.conf").write_text(USERS % "pw")
            server.process.send_signal(signal.SIGHUP)
            since = time.monotonic()
            await daemon.until(lambda status: status["connected"])
            told(record_property, "account taken away and given back", time.monotonic() - since)

            async def resolve() -> list[str]:
                return [server.url]

            login = Options(name="fleet", credentials=lambda: Credentials(user="fleet", password=Secret("f")))
            made = make_servers(1, version=1, token="s3cret", now=time.time())
            async with open_nats(resolve, login) as bus:
                await bus.wait_connected()
                async with open_fleet(bus, made.servers) as fleet:
                    await fleet.announce()
                    with trio.fail_after(30):
                        await fleet.wait_until(lambda: made.servers[0].node.received.done["restart"] == 1)
            assert "pw" not in (tmp_path / "log.json").read_text().replace("pwd", "")
            assert await daemon.ends() == 0
