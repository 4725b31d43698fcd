"""All measurements, interleaved, and the report: ``make bench``, or ``make bench QUICK=1`` for a minute.

    python -m benchmarks [--quick] [--rounds 6] [--peer PROGRAM] [--only PART ...]

The full run takes twenty to thirty minutes, writes ``benchmarks/results.json`` and fills ``docs/performance.md``. Each
round measures the yardsticks and then every case once; what is told are medians over the rounds. ``--only matrix`` is
no part of it: it measures each combination there is, once, in twenty minutes.
A run in which a server was not configured exactly once fails everything.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import trio
from attrs import asdict, evolve

from benchmarks import report, scale, yardstick
from benchmarks.site import Helper, Site, Transport, make_site
from benchmarks.throughput import Case, Failed, Run, bench, measure

RESULTS = Path(__file__).parent / "results.json"
SERVERS: dict[Helper, int] = {"sh": 1000, "python": 200, "in-process": 3000, "stream": 1500}
"""Servers of one run: some seconds' work."""
HELPERS: tuple[Helper, ...] = ("sh", "python", "stream", "in-process")
TRANSPORTS: tuple[Transport, ...] = ("plain", "tls")
WORKERS = (1, 2, 4, 8, 16, 32, 64)
SIZES = (100, 1000, 10_000)
PARTS = ("cases", "workers", "sizes", "scale")
EXTRA = ("matrix",)
BASE = ("machine", "quick", "rounds", "loads", "others")
"""What the results say of the run as a whole: of the one that measured ``cases``."""


def usual(transport: Transport, version: int, helper: Helper, workers: int = 32) -> Case:
    """A case as it is at a site: over TLS there is a certificate, so version 1 is signed."""
    signed = version == 2 or transport == "tls"
    return Case(transport=transport, version=version, helper=helper, workers=workers, signed=signed)


def all_cases(*, quick: bool, peer: str) -> list[Case]:
    helpers: tuple[Helper, ...] = ("sh", "in-process") if quick else HELPERS
    cases = []
    # What is compared runs side by side: the machine's speed changes within seconds.
    for helper in helpers:
        cases += [usual("plain", 1, helper), usual("tls", 1, helper)]
        if not quick and helper in {"sh", "in-process"}:
            # The transport alone, no signatures on either side; and the price of a log.
            cases.append(evolve(usual("tls", 1, helper), signed=False))
            cases.append(evolve(usual("plain", 1, helper), loglevel="info"))
        if peer and helper == "sh":
            cases += [evolve(usual(transport, 1, "sh"), program=peer) for transport in TRANSPORTS]
        cases += [usual("plain", 2, helper), usual("tls", 2, helper)]
    return cases


class Suite:
    """The measurements of one run of this program, as they come in."""

    def __init__(self, site: Site, *, quick: bool, rounds: int, peer: str) -> None:
        self._site = site
        self._quick = quick
        self._rounds = rounds
        self._peer = peer
        self._began = time.monotonic()
        self.results: dict[str, Any] = {
            "machine": machine(),
            "quick": quick,
            "rounds": rounds,
            "times": {},
            "loads": [],
            "others": [],
        }

    def tell(self, text: str) -> None:
        load = os.getloadavg()[0]
        self.results["loads"].append(load)
        print(f"{time.monotonic() - self._began:6.0f} s  load {load:5.1f}  {text}", flush=True)

    async def run(self, case: Case, servers: int) -> Run:
        run = await measure(self._site, case, servers)
        self.told(case, run)
        return run

    def told(self, case: Case, run: Run) -> None:
        self.tell(
            f"{case.command.removeprefix('python -m benchmarks.throughput ')} --servers {run.servers}: "
            f"{run.rate:.0f}/s, own CPU {run.own_cpu:.2f} ms, others have {run.others:.0%}"
        )
        self.results["others"].append(run.others)

    async def yardsticks(self) -> dict[str, float]:
        seconds = 1.0 if self._quick else 2.0
        helpers: tuple[Helper, ...] = ("sh",) if self._quick else ("sh", "python")
        found: dict[str, float] = {helper: await yardstick.spawns(self._site, helper, seconds) for helper in helpers}
        found |= {str(transport): await yardstick.echoes(self._site, transport, seconds) for transport in TRANSPORTS}
        self.tell("bare: " + ", ".join(f"{key} {value:.0f}/s" for key, value in found.items()))
        return found

    async def cases(self) -> None:
        """Every combination at 32 workers."""
        cases = all_cases(quick=self._quick, peer=self._peer)
        rows: dict[Case, list[dict[str, Any]]] = {case: [] for case in cases}
        for _ in range(self._rounds):
            bare = await self.yardsticks()
            self.results.setdefault("yardsticks", []).append(bare)
            for case in cases:
                # The machine's speed changes within a minute: each run has its own spawns beside it.
                near = bare | (await self.yardstick(case) if case.helper in bare else {})
                servers = SERVERS[case.helper] // (3 if self._quick or case.program else 1)
                run = await self.run(case, servers)
                rows[case].append(asdict(run) | ratios(case, run, near))
        self.results["cases"] = [row(case, runs) for case, runs in rows.items()]

    async def workers(self) -> None:
        """From 1 worker to 64."""
        if self._quick:
            return
        rows: dict[Case, list[dict[str, Any]]] = {
            usual(transport, 1, "sh", workers): [] for workers in WORKERS for transport in TRANSPORTS
        }
        for _ in range(self._rounds):
            bare = {"sh": await yardstick.spawns(self._site, "sh")}
            for case, runs in rows.items():
                run = await self.run(case, 600)
                runs.append(asdict(run) | ratios(case, run, bare))
        self.results["workers"] = [row(case, runs) for case, runs in rows.items()]

    async def sizes(self) -> None:
        """The same at 100, 1,000 and 10,000 servers, five times in turn."""
        sizes = (100, 500) if self._quick else SIZES
        case = usual("plain", 1, "sh")
        rows: dict[int, list[dict[str, Any]]] = {size: [] for size in sizes}
        for _ in range(1 if self._quick else 5):
            for size, runs in rows.items():
                runs.append(asdict(await self.run(case, size)))
        self.results["sizes"] = [row(case, runs) | {"servers": size} for size, runs in rows.items()]

    async def matrix(self) -> None:
        """Each helper, version, transport and number of workers, at each size.

        The largest with 32 workers only, and not with a Python helper, which would take minutes and tell nothing new.
        """
        rows = []
        for helper, version, transport in product(HELPERS, (1, 2), TRANSPORTS):
            bare = await self.yardstick(usual(transport, version, helper))
            for workers in WORKERS:
                case = usual(transport, version, helper, workers)
                async with bench(self._site, case) as one:
                    await one.run(50)
                    for servers in SIZES if workers == 32 and helper != "python" else SIZES[:-1]:
                        run = await one.run(servers)
                        self.told(case, run)
                        names = {"helper": helper, "version": version, "transport": transport, "workers": workers}
                        rows.append(names | {"servers": servers, "rate": run.rate} | ratios(case, run, bare))
        self.results["matrix"] = {"others": median(self.results["others"]), "rows": rows}

    async def yardstick(self, case: Case) -> dict[str, float]:
        """The one that counts for this helper."""
        if case.helper in {"sh", "python"}:
            return {case.helper: await yardstick.spawns(self._site, case.helper, 1.0)}
        return {case.transport: await yardstick.echoes(self._site, case.transport, 1.0)}

    async def scale(self) -> None:
        """Waiting servers, discoveries, and nothing to do."""
        quick = self._quick
        idle = await scale.idle(self._site, 5 if quick else 30)
        self.tell(f"idle: {idle.percent:.2f} % of a core, {idle.wakeups:.1f} wake-ups a second")
        sweeps = await scale.sweeps(self._site, 2000 if quick else 10_000, times=2 if quick else 5)
        self.tell(f"discovery: {sweeps}")
        waiting = await scale.waiting(self._site, 20_000 if quick else 100_000)
        self.tell(f"waiting: {waiting[-1]}")
        self.results |= {"idle": asdict(idle), "sweeps": asdict(sweeps), "waiting": [asdict(one) for one in waiting]}
        if any(found != sweeps.servers for found in sweeps.found):
            raise Failed(f"a discovery lost servers: {sweeps}")


def ratios(case: Case, run: Run, bare: dict[str, float]) -> dict[str, float]:
    """What the rate is of the yardstick: spawns where each server costs one, else echoes, of which it needs four."""
    if case.helper in bare:
        return {"ratio": run.rate / bare[case.helper]}
    if case.transport in bare:
        return {"ratio": 4 * run.rate / bare[case.transport]}
    return {}


def row(case: Case, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the rounds; ``rates``, ``ratios`` and ``own_cpus``, of each round, show their noise."""
    found = {key: median(run[key] for run in runs) for key in runs[0]}
    names = {key: value for key, value in asdict(case).items() if key != "tree"}
    each = {f"{key}s": [run[key] for run in runs] for key in ("rate", "ratio", "own_cpu") if key in runs[0]}
    return names | found | {"command": case.command} | each


def machine() -> dict[str, Any]:
    return {
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "kernel": platform.release(),
    }


def now() -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())


async def main(arguments: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="benchmark.") as directory:
        rounds = 1 if arguments.quick else arguments.rounds
        site = make_site(Path(directory))
        suite = Suite(site, quick=arguments.quick, rounds=rounds, peer=arguments.peer)
        suite.tell(f"on {suite.results['machine']}")
        try:
            for part in arguments.only or PARTS:
                began = now()
                await getattr(suite, part)()
                suite.results["times"][part] = began
        except Failed as failure:
            print(f"FAILED: {failure}", file=sys.stderr)
            return 1
    if arguments.quick:
        print(report.text(suite.results))
        return 0
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    new = {key: value for key, value in suite.results.items() if "cases" in suite.results or key not in BASE}
    new["times"] = kept.get("times", {}) | new["times"]
    RESULTS.write_text(json.dumps(kept | new, indent=1) + "\n")
    report.write(kept | new)
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--peer", default="", help="an installed Go choria-provisioner, run turn by turn with ours")
    parser.add_argument("--only", nargs="+", choices=PARTS + EXTRA)
    sys.exit(trio.run(partial(main, parser.parse_args())))
