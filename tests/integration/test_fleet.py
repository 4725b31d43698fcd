"""The daemon, a real nats-server, real helpers and a simulated fleet: the main job, end to end."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import trio

from provisioner.bus.nats import Options, open_nats
from provisioner.simulator.embedded import NatsServer
from provisioner.simulator.faults import Fault, Kind
from provisioner.simulator.fleet import Fleet, MadeFleet, make_servers, open_fleet
from provisioner.simulator.site import Site
from tests.integration.daemon import running_daemon, write_helper


def options(made: MadeFleet, directory: Path) -> dict[str, Any]:
    key = directory / "signer.pem"
    key.write_text(made.issuer.verification_text)
    return {"features": {"jwt": True}, "jwt_verify_cert": str(key)}


def resolver(server: NatsServer) -> Any:
    async def resolve() -> list[str]:
        return [server.url]

    return resolve


def once(fleet: Fleet) -> None:
    """Each server was configured exactly once and restarted once."""
    received = [server.node.received for server in fleet.servers.values()]
    assert {len(one.configurations) for one in received} == {1}
    assert {one.done["restart"] for one in received} == {1}
    assert {one.asked["configure"] for one in received} == {1}


def children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return found


def rss(pid: int) -> int:
    """Peak memory of a process in MiB."""
    line = next(li for li in Path(f"/proc/{pid}/status").read_text().splitlines() if li.startswith("VmHWM"))
    return int(line.split()[1]) // 1024


@pytest.mark.timeout(120)
async def test_a_thousand_servers_found_by_discovery_and_by_events_at_once(nats: NatsServer, tmp_path: Path) -> None:
    made = make_servers(1000, version=1, token="s3cret", now=time.time())
    async with open_nats(resolver(nats), Options(name="fleet")) as bus:
        await bus.wait_connected()
        async with open_fleet(bus, made.servers) as fleet:
            async with running_daemon(tmp_path, nats.port, **options(made, tmp_path)) as daemon:
                await daemon.until(lambda status: status["connected"])
                await fleet.announce(list(fleet.servers)[::2])
                await daemon.until(lambda status: status["outcomes"].get("provisioned", 0) >= 1000, seconds=90)
                once(fleet)
                metrics = await daemon.metrics()
                assert metrics["discovered"] + metrics["event_discovered"] == 1000
                assert metrics["provisioned"] == 1000
                assert metrics["provision_errors"] == 0
                assert metrics["discover_cycles"] >= 1
                assert metrics["discovery_errors"] == 0
                assert metrics["busy_workers"] == 0
                assert metrics["work_queue_entries"] == metrics["waiting_nodes"] == 0
                assert metrics["paused"] == 0
                for rpc in ("choria_provision#jwt", "rpcutil#inventory", "choria_provision#configure"):
                    assert metrics[f"rpc_time_count{{rpc={rpc}}}"] == 1000
                    assert metrics[f"rpc_errors{{rpc={rpc}}}"] == 0
                assert metrics["helper_time_count"] == 1000
                assert metrics["helper_errors"] == 0
                assert metrics["outcomes{outcome=provisioned}"] == 1000
                assert rss(daemon.process.pid) < 120
                assert children(daemon.process.pid) == []
                assert await daemon.ends() == 0
                assert not (tmp_path / "pid").exists()
                assert daemon.messages("error") == []


DEAF = """#!/bin/sh
trap '' TERM INT HUP
cat >/dev/null
sh -c 'trap "" TERM INT HUP; echo $$ >> "$0.grandchildren"; while :; do sleep 1; done' "$0" &
echo $$ >> "$0.children"
while :; do sleep 1; done
"""


@pytest.mark.timeout(90)
async def test_told_to_stop_with_helpers_running_and_servers_silent(nats: NatsServer, tmp_path: Path) -> None:
    silent = [(Fault(Kind.SILENT), 5)]
    made = make_servers(15, version=1, token="s3cret", now=time.time(), faults=silent)
    helper = write_helper(tmp_path, DEAF)
    async with open_nats(resolver(nats)) as bus:
        await bus.wait_connected()
        async with open_fleet(bus, made.servers), running_daemon(tmp_path, nats.port, workers=15) as daemon:
            grandchildren = helper.with_name("helper.grandchildren")
            with trio.fail_after(20):
                while not grandchildren.exists() or len(grandchildren.read_text().split()) < 10:
                    await trio.sleep(0.02)
            status = await daemon.status()
            assert len(status["at_work"]) == 15
            assert await daemon.ends(seconds=5) == 0
            assert not (tmp_path / "pid").exists()
            pids = grandchildren.read_text().split() + helper.with_name("helper.children").read_text().split()
            assert len(pids) >= 20
            assert [pid for pid in pids if alive(int(pid))] == []


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.timeout(120)
async def test_the_broker_comes_late_dies_and_comes_back(nats: NatsServer, tmp_path: Path) -> None:
    made = make_servers(300, version=1, token="s3cret", now=time.time())
    await nats.kill()
    async with running_daemon(tmp_path, nats.port, **options(made, tmp_path)) as daemon:
        status = await daemon.until(lambda status: status["connection_error"] != "")
        assert not status["connected"]
        await nats.restart()
        async with open_nats(resolver(nats)) as bus:
            await bus.wait_connected()
            async with open_fleet(bus, made.servers) as fleet:
                await daemon.until(lambda status: status["connected"])
                await fleet.announce()
                await daemon.until(lambda status: status["outcomes"].get("provisioned", 0) >= 100, seconds=60)
                await nats.kill()
                await daemon.until(lambda status: not status["connected"])
                await nats.restart()
                await bus.wait_connected()
                # Nobody announces itself again: the daemon looks as soon as it is back.
                with trio.fail_after(60):
                    await fleet.wait_until(
                        lambda: all(server.node.received.done["restart"] for server in fleet.servers.values())
                    )
                assert await daemon.ends() == 0


@pytest.mark.timeout(90)
async def test_ten_thousand_answers_to_one_discovery(nats: NatsServer, tmp_path: Path) -> None:
    made = make_servers(10_000, version=1, token="s3cret", now=time.time(), site=Site(token="", jwt=""))
    write_helper(tmp_path, '#!/bin/sh\ncat >/dev/null\necho \'{"defer":true,"defer_for":"1h"}\'\n')
    async with open_nats(resolver(nats)) as bus:
        await bus.wait_connected()
        async with open_fleet(bus, made.servers), running_daemon(tmp_path, nats.port, workers=1) as daemon:
            slowest = 0.0

            async def answered() -> bool:
                nonlocal slowest
                began = trio.current_time()
                metrics = await daemon.metrics()
                slowest = max(slowest, trio.current_time() - began)
                return metrics["discovered"] + metrics["refused_sightings{reason=roster_full}"] >= 10_000

            with trio.fail_after(60):
                while not await answered():
                    await trio.sleep(0.02)
            status = await daemon.status()
            assert sum(status["refused_sightings"].values()) == 0
            # The page went on being answered while they came in: generous, for a busy machine.
            assert slowest < 5
            assert rss(daemon.process.pid) < 150
            assert await daemon.ends(signal.SIGINT) == 0


@pytest.mark.timeout(120)
async def test_every_kind_of_trouble_is_that_servers_own(nats: NatsServer, tmp_path: Path) -> None:
    kinds = {
        Kind.REFUSING: "refused",
        Kind.LOCKED: "locked",
        Kind.WRONG_TOKEN: "refused",
        Kind.UNVERIFIABLE_JWT: "jwt_bad_signature",
        Kind.EXPIRED_JWT: "jwt_expired",
        Kind.TWICE: "provisioned",
        Kind.TWO_ANSWERS: "answered_twice",
        Kind.GARBAGE: "bad_reply",
        Kind.BAD_BODY: "bad_reply",
        Kind.EMPTY_DATA: "bad_reply",
        Kind.WRONG_TYPES: "bad_reply",
        Kind.WRONG_VERSION: "bad_reply",
    }
    faults = [(Fault(kind), 1) for kind in kinds]
    made = make_servers(len(kinds) + 10, version=1, token="s3cret", now=time.time(), faults=faults)
    async with open_nats(resolver(nats)) as bus:
        await bus.wait_connected()
        async with open_fleet(bus, made.servers) as fleet:
            async with running_daemon(tmp_path, nats.port, workers=30, **options(made, tmp_path)) as daemon:
                total = len(made.servers)
                status = await daemon.until(lambda status: len(status["recent"]) >= total, seconds=60)
                found = {one["identity"]: one["outcome"] for one in status["recent"]}
                wanted = dict(zip((s.identity for s in made.servers), kinds.values(), strict=False))
                assert {name: found.get(name) for name in wanted} == wanted
                good = [s for s in made.servers if s.fault is None]
                assert {found[s.identity] for s in good} == {"provisioned"}
                assert all(len(s.node.received.configurations) == 1 for s in good)
                errors = daemon.messages("error")
                for identity, word in wanted.items():
                    if word not in {"provisioned", "locked"}:
                        assert any(identity in line and f"({word})" in line for line in errors), (identity, word)
                assert not any("Traceback" in line for line in (tmp_path / "output").read_text().splitlines())
                assert len(fleet.servers) == total
                assert await daemon.ends() == 0


async def test_hostile_events_leave_the_daemon_unharmed(nats: NatsServer, tmp_path: Path) -> None:
    subject = "choria.lifecycle.event.startup.provision_mode_server"
    good = '{"protocol":"io.choria.lifecycle.v1.startup","id":"x","identity":"%s","component":"%s","timestamp":1}'
    hostile = [
        b"",
        b"null",
        b"[]",
        b"x" * 1_000_000,
        b'{"protocol":"io.choria.lifecycle.v9.startup"}',
        (good % ("a.*", "provision_mode_server")).encode(),
        (good % ("a.>", "provision_mode_server")).encode(),
        (good % ("a\\nb", "provision_mode_server")).encode(),
        (good % ("a..b", "provision_mode_server")).encode(),
        (good % ("", "provision_mode_server")).encode(),
        (good % ("n1.example.net", "other")).encode(),
        b"[" * 100_000,
        os.urandom(1000),
    ]
    made = make_servers(1, version=1, token="s3cret", now=time.time())
    async with open_nats(resolver(nats)) as bus:
        await bus.wait_connected()
        async with running_daemon(tmp_path, nats.port) as daemon:
            await daemon.until(lambda status: status["connected"] and status["leader"])
            await daemon.until(lambda status: status["recent"] == [])
            with trio.fail_after(30):
                while (await daemon.metrics())["discover_cycles"] < 1:
                    await trio.sleep(0.02)
            for data in hostile:
                bus.publish(subject, data)
            await bus.flush()
            with trio.fail_after(30):
                while sum((await daemon.status())["refused_sightings"].values()) < len(hostile):
                    await trio.sleep(0.05)
            async with open_fleet(bus, made.servers) as fleet:
                await fleet.announce()
                await daemon.until(lambda status: status["outcomes"].get("provisioned", 0) == 1)
            assert (await daemon.metrics())["event_discovered"] == 1


STREAM = """#!/bin/sh
while read -r line; do
    echo '{"configuration":{"plugin.choria.server.provision":"0"}}'
done
"""


async def test_helpers_that_run_on(nats: NatsServer, tmp_path: Path) -> None:
    made = make_servers(100, version=1, token="s3cret", now=time.time())
    write_helper(tmp_path, STREAM)
    async with open_nats(resolver(nats)) as bus:
        await bus.wait_connected()
        async with open_fleet(bus, made.servers) as fleet:
            async with running_daemon(tmp_path, nats.port, helper_mode="stream", helper_processes=2) as daemon:
                await daemon.until(lambda status: status["outcomes"].get("provisioned", 0) >= 100)
                once(fleet)
                helpers = children(daemon.process.pid)
                assert len(helpers) == 2
                assert await daemon.ends() == 0
                assert [pid for pid in helpers if alive(pid)] == []
