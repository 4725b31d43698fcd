"""``provision``: one server now, its steps and its lock; and the dry run that leaves it as it was."""

import json
import re
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from attrs import define

from provisioner.bus.nats import Options, open_nats
from provisioner.errors import EXIT_FINDING, EXIT_OK, EXIT_REFUSED, EXIT_UNREACHABLE
from provisioner.simulator.embedded import NatsServer
from provisioner.simulator.faults import Fault, Kind
from provisioner.simulator.fleet import Fleet, make_servers, open_fleet
from provisioner.simulator.server import Server
from tests.integration.daemon import running_daemon, write_files, write_helper
from tests.integration.test_fleet import alive, options, resolver

FAULTS = [(Fault(Kind.LOCKED), 1), (Fault(Kind.WRONG_TOKEN), 1), (Fault(Kind.EXPIRED_JWT), 1)]


@define
class Bench:
    """A fleet on a broker, and a configuration for it."""

    fleet: Fleet
    directory: Path
    nats: NatsServer

    def server(self, number: int) -> Server:
        return self.fleet.servers[name(number)]

    async def run(self, *words: str) -> tuple[int, str, str]:
        files = ["--config", str(self.directory / "provisioner.yaml")]
        files += ["--choria-config", str(self.directory / "choria.cfg")]
        argv = [sys.executable, "-m", "provisioner.cli.choria", "provision", *files, *words]
        run = await trio.run_process(argv, capture_stdout=True, capture_stderr=True, check=False)
        assert b"Traceback" not in run.stderr
        return run.returncode, run.stdout.decode(), run.stderr.decode()


def name(number: int) -> str:
    return f"n{number:04d}.example.net"


@asynccontextmanager
async def bench(nats: NatsServer, directory: Path, **keys: object) -> AsyncIterator[Bench]:
    made = make_servers(6, version=1, token="s3cret", now=time.time(), faults=FAULTS)
    helper = write_helper(directory)
    write_files(directory, nats.port, helper=str(helper), **{**options(made, directory), **keys})
    async with open_nats(resolver(nats), Options(name="fleet")) as bus:
        await bus.wait_connected()
        async with open_fleet(bus, made.servers) as fleet:
            yield Bench(fleet, directory, nats)


async def test_a_dry_run_changes_nothing_and_then_it_is_done(nats: NatsServer, tmp_path: Path) -> None:
    audit = tmp_path / "audit"
    async with bench(nats, tmp_path, audit_log=str(audit)) as at:
        server = at.server(4)
        before = dict(server.node.files)
        code, out, _ = await at.run("--dry-run", name(4))
        assert code == EXIT_OK
        assert server.node.received.asked == {"inventory": 1}
        assert server.node.files == before
        assert not audit.exists()
        assert "The helper was not told jwt, which a dry run does not fetch." in out
        assert "plugin.choria.server.provision = 0" in out
        assert out.endswith(f"{name(4)}: would end as provisioned\n")
        code, out, _ = await at.run("--dry-run", "--with-jwt", name(4))
        assert code == EXIT_OK
        assert server.node.received.asked == {"inventory": 2, "jwt": 1}
        assert server.node.files == before
        assert "the server is now locked for two minutes" in out
        assert "was not told" not in out
        code, out, _ = await at.run(name(4), name(5))
        assert code == EXIT_OK
        assert server.node.received.done == {"inventory": 3, "jwt": 2, "configure": 1, "restart": 1}
        assert at.server(5).node.received.done["restart"] == 1
        steps = re.findall(r"(?m)^  (\S.*?) +([\d.]+) s$", out)
        one = ["Fetching JWT", "Fetching Inventory", "Asking the helper", "Configuring node", "Restarting node"]
        assert [step for step, _ in steps] == one * 2
        assert "s3cret" not in out
        assert " (prov.example.net.cli)" in server.node.files["server.cfg"].splitlines()[0]
        entries = [json.loads(line) for line in audit.read_text().splitlines()]
        assert [(entry["identity"], entry["provisioner"]) for entry in entries] == [
            (name(4), "prov.example.net.cli"),
            (name(5), "prov.example.net.cli"),
        ]


@pytest.mark.parametrize(
    ("numbers", "code", "said"),
    [
        ([1], EXIT_UNREACHABLE, "locked after .* held by another provisioner\n  what to do: Nothing, if another"),
        ([2], EXIT_FINDING, "refused after .*: Fetching JWT: Incorrect provision token supplied\n  what to do: "),
        ([3, 4], EXIT_FINDING, "jwt_expired after .*: Fetching JWT: .*\n  what to do: .*\nn0004.example.net\n"),
    ],
)
async def test_how_it_fails(nats: NatsServer, tmp_path: Path, numbers: list[int], code: int, said: str) -> None:
    async with bench(nats, tmp_path) as at:
        found, out, _ = await at.run(*map(name, numbers))
        assert re.search(said, out), out
        assert found == code


async def test_a_daemon_and_it_are_told_apart_by_the_lock(nats: NatsServer, tmp_path: Path) -> None:
    async with bench(nats, tmp_path) as at:
        write_helper(tmp_path, "#!/bin/sh\ncat >/dev/null\necho '{\"defer\":true}'\n")
        code, out, _ = await at.run(name(6))
        assert (code, "deferred" in out) == (EXIT_OK, True)
        written = json.loads((tmp_path / "provisioner.yaml").read_text())
        keys = {key: written[key] for key in ("helper", "features", "jwt_verify_cert")}
        async with running_daemon(tmp_path, nats.port, **keys) as daemon:
            await daemon.until(lambda status: sum(status["outcomes"].values()) >= 6)
            ends = {one["identity"]: one["outcome"] for one in (await daemon.status())["recent"]}
            # Its lock lasts two minutes after its last call; the others are free, or have their own trouble.
            assert (ends[name(6)], ends[name(5)], ends[name(4)]) == ("locked", "deferred", "deferred")
            code, out, _ = await at.run(name(5))
            assert (code, "held by another provisioner" in out) == (EXIT_UNREACHABLE, True)


async def test_refused_before_anything_is_asked(nats: NatsServer, tmp_path: Path) -> None:
    async with bench(nats, tmp_path, features={}) as at:
        code, out, err = await at.run("a b", "--with-jwt")
        assert (code, out) == (EXIT_REFUSED, "")
        assert err.splitlines() == [
            "choria-provisioner: IDENTITY: is no server's identity: it has a blank or a control character (found a b)",
            "choria-provisioner: --with-jwt: goes with --dry-run only; without it the token is fetched anyway",
            f"choria-provisioner: {tmp_path}/provisioner.yaml: features.jwt: must be on for --with-jwt",
        ]
        await nats.kill()
        code, _, err = await at.run("--wait", "1", name(4))
        assert code == EXIT_UNREACHABLE
        assert err.startswith("choria-provisioner: no connection to a broker within 1 s: ")


async def test_a_dry_run_finds_every_complaint(nats: NatsServer, tmp_path: Path) -> None:
    async with bench(nats, tmp_path) as at:
        write_helper(tmp_path, '#!/bin/sh\necho \'{"configuration":{},"action_policies":{"../x":"y"},"key":"abc"}\'\n')
        code, out, _ = await at.run("--dry-run", name(4))
        assert code == EXIT_FINDING
        assert "would end as bad_configuration: Asking the helper: the helper's configuration is empty" in out
        assert "  also: bad_configuration: the helper gave key without certificate and ca and ssldir" in out
        assert "  also: seal_failed: " in out
        assert at.server(4).node.received.asked == {"inventory": 1}


async def test_told_to_stop_it_leaves_no_helper(nats: NatsServer, tmp_path: Path) -> None:
    async with bench(nats, tmp_path):
        pid = tmp_path / "pid"
        write_helper(tmp_path, f"#!/bin/sh\ntrap '' TERM INT\necho $$ >'{pid}.new'; mv '{pid}.new' '{pid}'\nsleep 60\n")
        argv = [sys.executable, "-m", "provisioner.cli.choria", "provision", name(4)]
        argv += ["--config", str(tmp_path / "provisioner.yaml"), "--choria-config", str(tmp_path / "choria.cfg")]
        process = await trio.lowlevel.open_process(argv, stdin=-3, stdout=-3, stderr=-3)
        try:
            with trio.fail_after(30):
                while not pid.exists():
                    await trio.sleep(0.02)
                process.send_signal(signal.SIGTERM)
                assert await process.wait() == 130
            assert not alive(int(pid.read_text()))
        finally:
            if process.poll() is None:
                process.kill()
