"""One run: a broker, a fleet and a provisioner on this machine; how many servers a second, at what cost.

    python -m benchmarks.throughput [--servers 1000] [--version 1] [--transport plain] [--helper sh] [--workers 32]
        [--signed [--bits 2048]] [--loglevel warn] [--facts BYTES] [--peer PROGRAM] [--rounds 3] [--profile FILE]

Prints one line of JSON a round. CPU times are those of the kernel, in milliseconds a server.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any

import trio
from attrs import asdict, frozen

from benchmarks.site import Helper, Site, Transport, make_site
from provisioner.simulator.embedded import nats_server

TICK = os.sysconf("SC_CLK_TCK")
ROOT = Path(__file__).parents[1]


class Failed(Exception):
    """A run whose numbers count for nothing."""


@frozen(kw_only=True)
class Case:
    """One combination.

    Attributes:
        signed: whether requests are signed. Version 2 always signs; version 1 does when it has a certificate, which is
            what a provisioner over TLS has.
        program: another provisioner than ours.
        tree: another checkout, whose provisioner runs instead: to compare two versions.
    """

    version: int = 1
    transport: Transport = "plain"
    helper: Helper = "sh"
    workers: int = 32
    signed: bool = False
    loglevel: str = "warn"
    facts: int = 0
    program: str = ""
    tree: str = str(ROOT)

    @property
    def is_plain_daemon(self) -> bool:
        """Whether ``choria-provisioner run`` does this; else ``benchmarks.daemon`` stands in for it."""
        return self.helper != "in-process" and (self.transport == "tls") == (self.signed or self.version == 2)

    @property
    def provisioner(self) -> list[str]:
        """The start of the provisioner's command line."""
        if self.program:
            return [self.program, "run"]
        if self.is_plain_daemon:
            return [sys.executable, "-m", "provisioner.cli.choria", "run"]
        command = [sys.executable, "-m", "benchmarks.daemon"]
        command += ["--no-tls"] if self.transport == "plain" else []
        command += ["--unsigned"] if self.version == 1 and not self.signed else []
        return command + (["--in-process"] if self.helper == "in-process" else [])

    @property
    def command(self) -> str:
        """How to repeat it."""
        flags = [f"--version {self.version}", f"--transport {self.transport}", f"--helper {self.helper}"]
        flags += [f"--workers {self.workers}"]
        flags += ["--signed"] if self.signed and self.version == 1 else []
        flags += [f"--loglevel {self.loglevel}"] if self.loglevel != "warn" else []
        flags += [f"--facts {self.facts}"] if self.facts else []
        flags += [f"--peer {self.program}"] if self.program else []
        return " ".join(["python -m benchmarks.throughput", *flags])


@frozen(kw_only=True)
class Run:
    """What one run came to. CPU in milliseconds a server, memory in MiB (peak).

    Attributes:
        others: share of the machine, 0 to 1, that went to processes of others, and to the kernel for nobody.
        load: the load average: a run of 32 workers makes up to 32 of it itself.
    """

    servers: int
    rate: float
    own_cpu: float
    helper_cpu: float
    fleet_cpu: float
    broker_cpu: float
    rss: float
    others: float
    load: float


def cpu(pid: int) -> tuple[float, float]:
    """Seconds of CPU of a process so far, and of its children: of those that have ended, and of those that live."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    own, children = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
    living = 0.0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            living += sum(sum(cpu(int(one))) for one in (task / "children").read_text().split())
    return own / TICK, children / TICK + living


def machine_cpu() -> tuple[float, float]:
    """Seconds of CPU that the machine has worked so far, and that it could have, over all cores."""
    numbers = [int(text) for text in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle = numbers[3] + numbers[4]
    return (sum(numbers) - idle) / TICK, sum(numbers) / TICK


def memory(pid: int, what: str = "VmHWM") -> float:
    """MiB: ``VmHWM`` at the most, ``VmRSS`` now."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what)) / 1024


@asynccontextmanager
async def child(argv: Sequence[str], log: Path, **pipes: Any) -> AsyncIterator[trio.Process]:
    """A child process that doesn't outlive its context."""
    with log.open("ab") as errors:
        process = await trio.lowlevel.open_process(
            argv, **{"stdin": DEVNULL, "stdout": errors, "stderr": errors, "cwd": ROOT, **pipes}
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        with trio.CancelScope(shield=True), trio.move_on_after(10):
            await process.wait()
        if process.poll() is None:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()


class FleetProcess:
    """The fleet, as its parent sees it."""

    def __init__(self, process: trio.Process, log: Path) -> None:
        self.process = process
        self._log = log
        self._rest = b""
        self.looked: list[float] = []

    async def until(self, event: str) -> dict[str, Any]:
        """Reads what it says until it says this."""
        while True:
            said = await self._line()
            if said["event"] == "looked":
                self.looked.append(said["at"])
            if said["event"] == event:
                return said

    async def tell(self, **what: Any) -> None:
        assert self.process.stdin is not None
        await self.process.stdin.send_all(json.dumps(what).encode() + b"\n")

    async def _line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        while b"\n" not in self._rest:
            chunk = await self.process.stdout.receive_some()
            if not chunk:
                raise Failed(f"the fleet has ended: {self._log.read_text()[-2000:]}")
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found


class Bench:
    """A broker, a fleet and a provisioner that has just looked for servers and found none."""

    def __init__(self, broker: int, fleet: FleetProcess, provisioner: trio.Process, log: Path) -> None:
        self.broker = broker
        self.fleet = fleet
        self.provisioner = provisioner
        self._log = log

    async def run(self, servers: int, *, seconds: float = 600) -> Run:
        """Brings up fresh servers and waits until all are provisioned.

        Raises:
            Failed: not all were provisioned in time, or one was configured twice or not at all.
        """
        own, helpers = cpu(self.provisioner.pid)
        broker, _ = cpu(self.broker)
        busy, possible = machine_cpu()
        await self.fleet.tell(servers=servers)
        done: dict[str, Any] | None = None
        with trio.move_on_after(seconds):
            done = await self.fleet.until("done")
        if self.provisioner.poll() is not None or done is None:
            log = self._log.read_text(errors="replace")[-2000:] if self._log.exists() else ""
            raise Failed(f"the provisioner ended or did not finish in {seconds:g} s; its log ends with: {log}")
        if done["wrong"]:
            raise Failed(f"not configured exactly once: {len(done['wrong'])} servers, such as {done['wrong'][:3]}")
        own_after, helpers_after = cpu(self.provisioner.pid)
        busy_after, possible_after = machine_cpu()
        broker_after, _ = cpu(self.broker)
        ours = own_after - own + helpers_after - helpers + done["cpu"] + broker_after - broker
        return Run(
            servers=servers,
            rate=servers / done["seconds"],
            own_cpu=(own_after - own) * 1000 / servers,
            helper_cpu=(helpers_after - helpers) * 1000 / servers,
            fleet_cpu=done["cpu"] * 1000 / servers,
            broker_cpu=(broker_after - broker) * 1000 / servers,
            rss=memory(self.provisioner.pid),
            others=max(busy_after - busy - ours, 0.0) / max(possible_after - possible, 1 / TICK),
            load=os.getloadavg()[0],
        )


@asynccontextmanager
async def bench(site: Site, case: Case, **keys: object) -> AsyncIterator[Bench]:
    """Everything that one case needs, started and looked after. ``keys`` are further ones of the YAML."""
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(nats_server(site.broker(case.transport)))
        assert broker.process is not None
        jwt = site.path(f"provisioning-{case.version}.jwt")
        jwt.write_text(site.provisioning_jwt(case.version))
        scheme = "tls" if case.transport == "tls" else "nats"
        command = [sys.executable, "-m", "benchmarks.fleet", "--url", f"{scheme}://127.0.0.1:{broker.port}"]
        command += ["--version", str(case.version), "--jwt", str(jwt), "--facts", str(case.facts)]
        command += ["--tls", str(site.directory)] if case.transport == "tls" else []
        log = site.path("fleet.log")
        fleet = FleetProcess(await stack.enter_async_context(child(command, log, stdin=PIPE, stdout=PIPE)), log)
        with trio.fail_after(60):
            await fleet.until("ready")
        yaml, choria = site.write_configuration(
            "provisioner",
            broker.port,
            version=case.version,
            transport=case.transport,
            helper=case.helper,
            workers=case.workers,
            signed=case.signed or case.version == 2,
            loglevel=case.loglevel,
            **keys,
        )
        command = [*case.provisioner, str(yaml), str(choria)]
        if case.program or case.is_plain_daemon:
            command = [*case.provisioner, "--config", str(yaml), "--choria-config", str(choria)]
        output = site.path("provisioner.output")
        output.write_bytes(b"")
        provisioner = await stack.enter_async_context(child(command, output, cwd=case.tree))
        with trio.move_on_after(60) as waited:
            await fleet.until("looked")
        if waited.cancelled_caught:
            raise Failed(f"the provisioner did not look for servers: {output.read_text(errors='replace')[-2000:]}")
        pid = provisioner.pid
        assert pid
        yield Bench(broker.process.pid, fleet, provisioner, site.path("provisioner.log"))


async def measure(site: Site, case: Case, servers: int, *, warm: int = 50, profile: Path | None = None) -> Run:
    """One run of one case, after a few servers to warm up."""
    async with bench(site, case) as one:
        if warm:
            await one.run(warm)
        if profile is None:
            return await one.run(servers)
        async with py_spy(one.provisioner.pid, profile):
            return await one.run(servers)


@asynccontextmanager
async def py_spy(pid: int, profile: Path) -> AsyncIterator[None]:
    """Samples where a process is while the context is open, for ``flamegraph.pl`` and its like."""
    command = ["py-spy", "record", "--pid", str(pid), "--rate", "500", "--format", "raw", "-o", str(profile)]
    process = await trio.lowlevel.open_process([*command, "--nonblocking", "--gil"], stdout=DEVNULL, stderr=DEVNULL)
    try:
        yield
    finally:
        process.send_signal(signal.SIGINT)  # then it writes
        with trio.CancelScope(shield=True):
            await process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="One combination, measured.")
    parser.add_argument("--servers", type=int, default=1000)
    parser.add_argument("--version", type=int, choices=(1, 2), default=1)
    parser.add_argument("--transport", choices=("plain", "tls"), default="plain")
    parser.add_argument("--helper", choices=("sh", "python", "in-process", "stream"), default="sh")
    parser.add_argument("--workers", type=int, default=32)
    parser.add_argument("--signed", action="store_true")
    parser.add_argument("--bits", type=int, default=2048, help="of the RSA key that version 1 signs with over TLS")
    parser.add_argument("--loglevel", default="warn")
    parser.add_argument("--facts", type=int, default=0)
    parser.add_argument("--peer", default="")
    parser.add_argument("--tree", action="append", default=[], help="a checkout to run from; several: turn by turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile", type=Path)
    given = parser.parse_args()
    trees = given.tree or [str(ROOT)]
    cases = [
        Case(
            version=given.version,
            transport=given.transport,
            helper=given.helper,
            workers=given.workers,
            signed=given.signed or given.version == 2,
            loglevel=given.loglevel,
            facts=given.facts,
            program=given.peer,
            tree=tree,
        )
        for tree in trees
    ]
    with tempfile.TemporaryDirectory(prefix="benchmark.") as directory:
        site = make_site(Path(directory), bits=given.bits)
        for _ in range(given.rounds):
            for case in cases:
                run = trio.run(partial(measure, site, case, given.servers, profile=given.profile))
                figures = {key: round(value, 2) for key, value in asdict(run).items()}
                print(json.dumps(figures | ({"tree": case.tree} if given.tree else {})), flush=True)


if __name__ == "__main__":
    main()
