"""The daemon's audit trail and recorded inputs: a rotation with SIGHUP, and a disk without room."""

import json
import signal
import time
from pathlib import Path

import trio

from provisioner.bus.nats import Options, open_nats
from provisioner.cli.choria import PROGRAM
from provisioner.errors import EXIT_REFUSED
from provisioner.simulator.embedded import NatsServer
from provisioner.simulator.fleet import make_servers, open_fleet
from tests.integration.daemon import running_daemon
from tests.integration.test_fleet import options, resolver


def told(path: Path) -> list[str]:
    return [json.loads(line)["identity"] for line in path.read_text().splitlines()]


async def test_a_rotated_trail_goes_on_in_a_new_file(nats: NatsServer, tmp_path: Path) -> None:
    made = make_servers(3, version=1, token="s3cret", now=time.time())
    audit, recorded = tmp_path / "audit", tmp_path / "inputs"
    recorded.mkdir()
    *others, last = made.servers
    keys = options(made, tmp_path) | {"audit_log": str(audit), "record_inputs": str(recorded), "interval": "30m"}
    async with open_nats(resolver(nats), Options(name="fleet")) as bus:
        await bus.wait_connected()
        async with open_fleet(bus, others) as fleet, running_daemon(tmp_path, nats.port, **keys) as daemon:
            await daemon.until(lambda status: status["outcomes"].get("provisioned", 0) == 2)
            audit.rename(tmp_path / "audit.1")
            fleet.servers[last.identity] = last
            daemon.process.send_signal(signal.SIGHUP)  # which looks for servers, too
            await daemon.until(lambda status: status["outcomes"].get("provisioned", 0) == 3)
            assert sorted(told(tmp_path / "audit.1")) == [server.identity for server in others]
            assert told(audit) == [last.identity]
            assert audit.stat().st_mode & 0o007 == 0
            names = sorted(path.name for path in recorded.iterdir())
            assert names == [f"{server.identity}.json" for server in made.servers]
            for path in recorded.iterdir():
                assert json.loads(path.read_bytes())["jwt"]["cht"] == "****"
                assert b"s3cret" not in path.read_bytes()
            assert await daemon.ends() == 0


async def test_a_full_disk_stops_nothing(nats: NatsServer, tmp_path: Path) -> None:
    made = make_servers(5, version=1, token="s3cret", now=time.time())
    async with open_nats(resolver(nats), Options(name="fleet")) as bus:
        await bus.wait_connected()
        keys = options(made, tmp_path) | {"audit_log": "/dev/full"}
        async with open_fleet(bus, made.servers), running_daemon(tmp_path, nats.port, **keys) as daemon:
            await daemon.until(lambda status: status["outcomes"].get("provisioned", 0) == 5)
            assert daemon.messages("error") == [
                "The audit trail /dev/full can't be written, lines are lost: No space left on device"
            ]
            assert await daemon.ends() == 0


async def test_a_directory_to_record_in_must_be_there(tmp_path: Path) -> None:
    words = ["run", "--config", "/dev/null", "--record", str(tmp_path / "none")]
    assert await trio.to_thread.run_sync(PROGRAM.main, words) == EXIT_REFUSED
