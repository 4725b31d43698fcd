"""Twenty minutes of trouble: servers come and go with faults, the helper fails, the broker dies; then all must be well.

    python -m benchmarks.soak [--minutes 20] [--servers 2000] [--seed 1] [--rate 10]

2,000 names live again and again: a server comes up (some announce themselves, others have to be found), misbehaves
once or twice in a way drawn from the seed, is provisioned, leaves, and comes back as a fresh machine. Meanwhile the
broker is killed and restarted, and the daemon, which is ``choria-provisioner run``, is told to reload. At the end
nothing more is drawn, and

- every server must end provisioned,
- memory, open files and threads of the daemon must be flat,
- no task may be left that was not there before the first server came,
- no outcome may be a bug, each reload must have been done, and the daemon must end with exit code 0.

Exit code 0 only if all of that holds. The seed decides what is drawn, not when the machine gets to it.
"""

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import trio
from attrs import frozen

from benchmarks.scale import Daemon, free_port
from benchmarks.site import ANSWER, TOKEN, make_site
from benchmarks.throughput import Case, child, memory
from provisioner.bus.nats import Options, open_nats
from provisioner.errors import BusError
from provisioner.simulator.embedded import NatsServer, nats_server
from provisioner.simulator.faults import Fault, Kind
from provisioner.simulator.fleet import Fleet, open_fleet
from provisioner.simulator.node import Node
from provisioner.simulator.server import Server, server_wire
from provisioner.simulator.site import Site as FleetSite

FAULTS = (
    Kind.SLOW,
    Kind.REFUSING,
    Kind.LOCKED,
    Kind.SILENT,
    Kind.TWICE,
    Kind.TWO_ANSWERS,
    Kind.FOR_ANOTHER,
    Kind.WRONG_ID,
    Kind.WRONG_VERSION,
    Kind.GARBAGE,
    Kind.BAD_BODY,
    Kind.EMPTY_DATA,
    Kind.WRONG_TYPES,
    Kind.HUGE,
    Kind.LOST_REPLY,
    Kind.DYING,
    Kind.COMING_BACK,
)
FAULTY = 0.25
"""Share of lives that have a fault."""
ANNOUNCED = 0.7
"""Share of servers that announce themselves."""
FAILING = 40
"""One helper run in so many fails in one of the ways of ``HELPER``."""
SAMPLE = 5.0
SETTLE = 600.0
"""Seconds in which the last servers must be done. One that fell silent holds a worker for five tries of 22 s each, and
is looked for once a minute after that: a few such rounds are in it."""

HELPER = f"""#!/bin/sh
# A run in {FAILING} goes wrong, each time in the next of these ways; the run's process id is the luck.
cat >/dev/null
if [ $(($$ % {FAILING})) -eq 0 ]; then
    case $(($$ / {FAILING} % 5)) in
    0) exit 3 ;;
    1) exit 0 ;;
    2) echo 'not JSON'; exit 0 ;;
    3) sleep 3600 ;;
    4) echo 'in trouble' >&2; (sleep 3600 &); kill -9 $$ ;;
    esac
fi
echo '{json.dumps(ANSWER)}'
"""


@frozen
class Sample:
    """The daemon at one moment: MiB, open files, threads."""

    at: float
    rss: float
    files: int
    threads: int


class Soak:
    """One soak."""

    def __init__(self, arguments: argparse.Namespace, fleet: Fleet, site: FleetSite, broker: NatsServer) -> None:
        self.fleet = fleet
        self.lives = 0
        self.broker_deaths = 0
        self.reloads = 0
        self.kinds: Counter[str] = Counter()
        self._arguments = arguments
        self._site = site
        self._broker = broker
        self._random = Random(arguments.seed)
        self._wires = server_wire(1)
        self._away = [f"soak{number}.example.net" for number in range(arguments.servers)]
        self._gone_seen = 0

    async def live(self) -> None:
        """Brings servers up, one by one; all of them in the first third of the time, then whoever has left."""
        pause = 1 / self._arguments.rate
        while True:
            await trio.sleep(self._random.expovariate(1 / pause))
            if not self._away:
                self._away = [name for name, server in self.fleet.servers.items() if not server.present]
                self._random.shuffle(self._away)
            if self._away:
                await self._be_born(self._away.pop())

    async def _be_born(self, name: str, *, healthy: bool = False) -> None:
        fault = None
        if not healthy and self._random.random() < FAULTY:
            kind = self._random.choice(FAULTS)
            action = self._random.choice(("", "jwt", "inventory", "configure", "restart"))
            fault = Fault(kind, action, times=self._random.randint(1, 2), seconds=self._random.uniform(0.5, 5))
            self.kinds[str(kind)] += 1
        self.lives += 1
        node = Node(name, self._site, Random(self._random.random()))
        self.fleet.servers[name] = Server(node, self._wires, fault)
        if healthy or self._random.random() < ANNOUNCED:
            with suppress(BusError):  # the broker is away: then it has to be found
                await self.fleet.announce([name])

    async def strike(self, daemon: Daemon) -> None:
        """Kills the broker or reloads the daemon, now and then."""
        while True:
            await trio.sleep(self._random.uniform(20, 100))
            if self._random.random() < 0.5:
                self.broker_deaths += 1
                await self._broker.kill()
                await trio.sleep(self._random.uniform(0.1, 5))
                await self._broker.start()
            else:
                self.reloads += 1
                daemon.process.send_signal(signal.SIGHUP)

    async def finish(self) -> list[str]:
        """Whoever is away unprovisioned comes back healthy; then waits for everybody. Returns those who are left."""
        for name in [name for name, server in self.fleet.servers.items() if not server.present and not done(server)]:
            await self._be_born(name, healthy=True)
        with trio.move_on_after(SETTLE):
            while self.unprovisioned():
                await trio.sleep(1)
                for name in [n for n in self.unprovisioned() if not self.fleet.servers[n].present]:
                    await self._be_born(name, healthy=True)  # it died meanwhile
        return self.unprovisioned()

    def unprovisioned(self) -> list[str]:
        """Servers whose present life has not ended in an accepted restart."""
        return [name for name, server in self.fleet.servers.items() if not done(server)]


def done(server: Server) -> bool:
    received = server.node.received
    return bool(received.configurations) and received.done["restart"] >= 1


def sample(pid: int) -> Sample:
    return Sample(
        at=time.monotonic(),
        rss=memory(pid, "VmRSS"),
        files=len(os.listdir(f"/proc/{pid}/fd")),  # noqa: PTH208
        threads=len(os.listdir(f"/proc/{pid}/task")),  # noqa: PTH208
    )


async def tasks(daemon: Daemon) -> int:
    """Trio tasks alive in the daemon, those that answer this question among them."""
    return int(json.loads((await daemon.get("/status"))[0])["tasks"])


async def quiet(daemon: Daemon, seconds: float = 60) -> int:
    """Tasks alive once nothing is under way: the least that is seen within so many seconds."""
    found: list[int] = []
    with trio.move_on_after(seconds):
        while len(found) < 20:
            found.append(await tasks(daemon))
            await trio.sleep(0.5)
    return min(found)


async def soak(arguments: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="soak.") as directory:
        site = make_site(Path(directory))
        site.path("helper-sh").write_text(HELPER)
        fleet_site = FleetSite(token=TOKEN, jwt=site.provisioning_jwt(1), restart_seconds=1.0)
        async with nats_server(directory=Path(directory)) as broker:

            async def resolve() -> list[str]:
                return [broker.url]

            async with (
                open_nats(resolve, Options(name="fleet")) as bus,
                open_fleet(bus, [], seed=arguments.seed) as fleet,
            ):
                await bus.wait_connected()
                port = await free_port()
                keys: dict[str, Any] = {"monitor_port": port, "interval": "1m", "loglevel": "info"}
                yaml, choria = site.write_configuration(
                    "soak", broker.port, version=1, transport="plain", helper="sh", workers=32, signed=False, **keys
                )
                command = [*Case().provisioner, "--config", str(yaml), "--choria-config", str(choria)]
                async with child(command, site.path("output")) as process:
                    daemon = Daemon(bus, process, port)
                    await up(daemon)
                    one = Soak(arguments, fleet, fleet_site, broker)
                    faults = await run(arguments, one, daemon)
                    process.terminate()
                    with trio.move_on_after(20):
                        if code := await process.wait():
                            faults.append(f"the daemon ended with {code}")
                faults += log_faults(site.path("soak.log")) + log_faults(site.path("output"))
                if (reloaded := site.path("soak.log").read_text().count("Configuration reloaded")) != one.reloads:
                    faults.append(f"{reloaded} of {one.reloads} reloads were done")
                if faults:
                    kept = shutil.copy(site.path("soak.log"), Path(tempfile.gettempdir()) / "soak-failed.log")
                    print(f"the daemon's log is kept at {kept}")
    for fault in faults:
        print(f"FAILED: {fault}")
    print("all is well" if not faults else f"{len(faults)} failures")
    return 1 if faults else 0


async def up(daemon: Daemon) -> None:
    with trio.fail_after(60):
        while True:
            try:
                await daemon.until("discover_cycles", 1)
                return
            except OSError:
                await trio.sleep(0.05)


async def run(arguments: argparse.Namespace, one: Soak, daemon: Daemon) -> list[str]:
    """The soak itself; returns what is wrong."""
    before = await quiet(daemon)
    pid = daemon.process.pid
    samples: list[Sample] = []
    end = trio.current_time() + 60 * arguments.minutes

    async def watch() -> None:
        told = 0.0
        while True:
            try:
                samples.append(now := sample(pid))
            except (OSError, StopIteration):
                return  # it is ending: end_with_it tells
            if now.at - told >= 30:
                told = now.at
                left = max(end - trio.current_time(), 0) / 60
                print(
                    f"{left:5.1f} min left: {one.lives} lives, {len(one.unprovisioned())} under way, RSS {now.rss:.1f} "
                    f"MiB, {now.files} files, {now.threads} threads, load {os.getloadavg()[0]:.1f}",
                    flush=True,
                )
            await trio.sleep(SAMPLE)

    async def end_with_it() -> None:
        await daemon.process.wait()
        watching.cancel_scope.cancel()

    async with trio.open_nursery() as watching:
        watching.start_soon(watch)
        watching.start_soon(end_with_it)
        with trio.move_on_at(end):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(one.live)
                nursery.start_soon(one.strike, daemon)
        if not one._broker.process or one._broker.process.poll() is not None:  # noqa: SLF001 - ours
            await one._broker.start()  # noqa: SLF001
        await daemon.bus.wait_connected()
        left = await one.finish()
        watching.cancel_scope.cancel()
    if daemon.process.returncode is not None:
        return ["the daemon ended before the soak did"]
    await trio.sleep(15)  # a helper that sleeps is killed after ten seconds
    after, last = await quiet(daemon), sample(pid)
    status = json.loads((await daemon.get("/status"))[0])
    print(f"{one.lives} lives, {one.broker_deaths} deaths of the broker, {one.reloads} reloads")
    print(f"faults {dict(sorted(one.kinds.items()))}")
    print(f"outcomes {status['outcomes']}")
    print(f"tasks before {before}, after {after}; at the end {last}")
    faults = [f"{len(left)} servers did not end provisioned, such as {left[:5]}"] if left else []
    if after > before:
        faults.append(f"{after - before} tasks are left")
    if status["outcomes"].get("internal_error"):
        faults.append(f"{status['outcomes']['internal_error']} cycles ended in a bug")
    return faults + growth(samples, last)


def growth(samples: list[Sample], last: Sample) -> list[str]:
    """What was not flat, first quarter against last, warm-up left out."""
    samples = samples[len(samples) // 10 :]
    quarter = max(len(samples) // 4, 1)
    early, late = samples[:quarter], samples[-quarter:]
    found = []
    rss = median(one.rss for one in early), median(one.rss for one in late)
    print(f"RSS at first {rss[0]:.1f} MiB, at last {rss[1]:.1f} MiB")
    # What is remembered of 2,000 servers and 200 recent outcomes comes in the first minutes.
    if rss[1] > rss[0] * 1.15 + 4:
        found.append(f"memory grew from {rss[0]:.1f} to {rss[1]:.1f} MiB")
    files = max(one.files for one in early)
    if last.files > min(one.files for one in samples) + 3:
        found.append(f"{last.files} files are open at rest")
    print(f"open files at most {files} at first, {max(one.files for one in late)} at last, {last.files} at rest")
    return found


def log_faults(path: Path) -> list[str]:
    """Tracebacks and bugs in a log."""
    if not path.exists():
        return []
    lines = path.read_text(errors="replace").splitlines()
    return [f"{path.name}: {line[:300]}" for line in lines if "Traceback" in line or "A bug in" in line][:5]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--servers", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=10.0, help="servers that come up a second")
    sys.exit(trio.run(partial(soak, parser.parse_args())))
