"""``choria-provisioner demo``: the main job at work on this machine alone.

An embedded NATS server, a fleet of simulated servers that speak the real protocol, the documentation's sample helper
as a real child process for each of them, and the provisioner itself, in one process.
"""

import argparse
import logging
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Self

import trio
from prometheus_client import CollectorRegistry
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from provisioner.bus.nats import Options, open_nats
from provisioner.choria.v1 import V1
from provisioner.config import Config, Features
from provisioner.errors import EXIT_FINDING, EXIT_OK, ConfigError, Fault
from provisioner.fleet.crew import Ended
from provisioner.metrics import Metrics
from provisioner.secret import Secret
from provisioner.service import Service
from provisioner.simulator.embedded import nats_server
from provisioner.simulator.fleet import Fleet, MadeFleet, make_servers, open_fleet
from provisioner.simulator.site import Site

TOKEN = "demo"  # noqa: S105 - guards simulated servers of this process
TIME_LIMIT = 120.0
"""Seconds after which the demo gives up: fifty servers take a few."""

HELPERS = (
    Path(__file__).parents[2] / "docs" / "examples" / "helper.py",
    Path(__file__).parents[1] / "simulator" / "sample_helper.py",
)
"""In a checkout, and in an installed package (the same file)."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    parser.add_argument("--servers", type=int, default=50, metavar="N", help="how many simulated servers (default 50)")
    parser.add_argument("--workers", type=int, default=8, metavar="N", help="how many at once (default 8)")
    parser.add_argument("--helper", type=Path, metavar="FILE", help="another helper than the sample")


def main(arguments: argparse.Namespace) -> int:
    """Runs the demo.

    Returns:
        0 only if every server was provisioned, once.
    """
    helper = arguments.helper or next((path for path in HELPERS if path.is_file()), None)
    if helper is None:
        raise ConfigError([Fault("--helper", "", "the sample helper is not installed here; name one")])
    command = (str(helper),) if arguments.helper else (sys.executable, str(helper))
    logging.basicConfig(level=logging.DEBUG if arguments.debug else logging.ERROR, format="%(message)s")
    with tempfile.TemporaryDirectory(prefix="choria-provisioner-demo.") as directory:
        return trio.run(_demo, arguments.servers, arguments.workers, command, Path(directory))


def _facts(identity: str) -> dict[str, Any]:
    """Every fifth server is one for tests, which the sample helper treats differently."""
    return {"fqdn": identity, "role": "test" if identity.partition(".")[0].endswith(("0", "5")) else "web"}


async def _demo(servers: int, workers: int, helper: tuple[str, ...], directory: Path) -> int:
    console = Console(highlight=False)
    made = make_servers(servers, version=1, token=TOKEN, now=time.time(), site=Site(token="", jwt="", facts=_facts))
    key = directory / "provisioning-signer.pem"
    key.write_text(made.issuer.verification_text)
    ended: list[Ended] = []
    news = trio.Event()

    def on_end(one: Ended) -> None:
        nonlocal news
        ended.append(one)
        news.set()
        news = trio.Event()

    async with nats_server(directory=directory) as server, trio.open_nursery() as nursery:

        async def resolve() -> list[str]:
            return [server.url]

        async with (
            open_nats(resolve, Options(name="fleet")) as fleet_bus,
            open_nats(resolve, Options(name="provisioner")) as bus,
            trio.open_nursery() as work,
        ):
            await fleet_bus.wait_connected()
            console.print(
                f"A NATS server listens on {server.url}, {servers} simulated Choria Servers wait on it.", soft_wrap=True
            )
            console.print(
                f"The provisioner looks for them with {workers} workers and asks {helper[-1]} about each.",
                soft_wrap=True,
            )
            async with open_fleet(fleet_bus, made.servers) as fleet:
                service = Service(
                    _config(key, workers, helper),
                    identity="provisioner.example.net",
                    bus=bus,
                    wire=V1("choria=provisioner.example.net"),
                    metrics=Metrics(CollectorRegistry(), "demo"),
                    on_end=on_end,
                )
                began = trio.current_time()
                await work.start(service.run)
                # Half of them say so themselves; the others have to be found.
                await fleet.announce(list(fleet.servers)[::2])
                with trio.move_on_after(TIME_LIMIT), _Display(console, servers) as display:
                    while len(ended) < servers:
                        await news.wait()
                        display.show(ended)
                    await fleet.wait_until(lambda: _restarted(fleet) >= servers)
                seconds = trio.current_time() - began
                work.cancel_scope.cancel()
        nursery.cancel_scope.cancel()
    return _closing(console, made, ended, seconds)


def _restarted(fleet: Fleet) -> int:
    return sum(server.node.received.done["restart"] for server in fleet.servers.values())


def _config(key: Path, workers: int, helper: tuple[str, ...]) -> Config:
    return Config(
        path=Path("demo"),
        workers=workers,
        interval=60.0,
        interval_text="1m",
        helper=helper,
        token=Secret(TOKEN),
        site="demo",
        features=Features(jwt=True),
        jwt_verify_cert=str(key),
    )


def _closing(console: Console, made: MadeFleet, ended: list[Ended], seconds: float) -> int:
    table = Table(title="What each server got")
    for column in ("server", "outcome", "seconds", "configured", "settings", "log level"):
        table.add_column(column, no_wrap=True)
    outcomes = {one.finished.identity: one.finished for one in ended}
    good = 0
    for server in made.servers:
        finished, received = outcomes.get(server.identity), server.node.received
        given = received.configurations[-1] if received.configurations else {}
        once = len(received.configurations) == 1 and received.done["restart"] == 1
        good += once and finished is not None and finished.outcome == "provisioned"
        table.add_row(
            server.identity,
            finished.outcome if finished else "not reached",
            f"{finished.seconds:.2f}" if finished else "",
            f"{len(received.configurations)} x",
            str(len(given)),
            given.get("loglevel", ""),
        )
    console.print(table)
    rate = len(ended) / seconds if seconds else 0.0
    console.print(f"{good} of {len(made.servers)} servers provisioned in {seconds:.1f} s ({rate:.0f} a second).")
    return EXIT_OK if good == len(made.servers) else EXIT_FINDING


class _Display:
    """Live progress on a terminal, a line now and then elsewhere."""

    def __init__(self, console: Console, servers: int) -> None:
        self._console = console
        self._servers = servers
        self._told = 0
        self._progress = Progress(
            TextColumn("provisioning"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", total=servers)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, ended: list[Ended]) -> None:
        """So many have ended, the last one like this."""
        last = ended[-1].finished
        self._progress.update(self._task, completed=len(ended), description=f"{last.identity} {last.outcome}")
        tenths = len(ended) * 10 // self._servers
        if not self._console.is_terminal and tenths > self._told:
            self._told = tenths
            self._console.print(f"  {len(ended)} of {self._servers}: {last.identity} {last.outcome}")
