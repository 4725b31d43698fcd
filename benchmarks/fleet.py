"""The fleet of a benchmark: simulated servers as a process of their own, told by lines of JSON what to do.

    python -m benchmarks.fleet --url URL --version 1|2 --jwt FILE [--tls DIRECTORY] [--facts BYTES]

It prints ``{"event": "looked"}`` whenever a provisioner sends a discovery. For each line ``{"servers": N}`` that it
reads, N fresh servers come up and announce themselves; when all of them were restarted into their configuration it
prints what happened, checked: each server was configured exactly once and restarted exactly once.
"""

import argparse
import gc
import json
import os
import ssl
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import trio

from benchmarks.site import TOKEN
from provisioner.bus.nats import NatsBus, Options, open_nats
from provisioner.choria import subjects
from provisioner.simulator.fleet import Fleet, open_fleet
from provisioner.simulator.node import Node
from provisioner.simulator.server import Server, server_wire
from provisioner.simulator.site import Site


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def tls(directory: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(directory / "ca.pem"))
    context.load_cert_chain(directory / "client.pem", directory / "client.key")
    return context


def facts_of(size: int) -> Any:
    padding = {f"fact_{number:04}": "x" * 52 for number in range(size // 64)}

    def facts(identity: str) -> dict[str, Any]:
        return {"fqdn": identity, "os": {"family": "RedHat", "release": "9"}, "role": "web", **padding}

    return facts


async def main(arguments: argparse.Namespace) -> None:
    async def resolve() -> list[str]:
        return [arguments.url]

    options = Options(name="fleet", tls=(lambda: tls(arguments.tls)) if arguments.tls else None)
    # A restarted server is gone at once, so that the clock stops with the last restart.
    site = Site(token=TOKEN, jwt=arguments.jwt.read_text(), restart_seconds=0.0, facts=facts_of(arguments.facts))
    async with open_nats(resolve, options) as bus:
        await bus.wait_connected()
        async with (
            open_fleet(bus, []) as fleet,
            bus.subscribe(subjects.broadcast("discovery"), lambda message: say(event="looked", at=time.time())),
        ):
            say(event="ready")
            lines = trio.wrap_file(sys.stdin)
            number = 0
            while line := await lines.readline():
                number += 1
                await one_round(bus, fleet, site, arguments.version, number, **json.loads(line))


async def one_round(
    bus: NatsBus, fleet: Fleet, site: Site, version: int, number: int, servers: int, announce: bool = True
) -> None:
    wire = server_wire(version)
    names = [f"r{number}n{place}.example.net" for place in range(servers)]
    fleet.servers.clear()
    fleet.gone = 0
    fleet.servers |= {name: Server(Node(name, site, Random(place)), wire) for place, name in enumerate(names)}
    gc.collect()
    gc.freeze()
    cpu, began = time.process_time(), time.perf_counter()
    await fleet.announce()
    await fleet.wait_gone(servers)
    elapsed = time.perf_counter() - began
    say(
        event="done",
        servers=servers,
        seconds=elapsed,
        cpu=time.process_time() - cpu,
        wrong=[name for name in names if not once(fleet.servers[name])],
    )


def once(server: Server) -> bool:
    received = server.node.received
    return (
        len(received.configurations) == 1
        and received.asked["configure"] == received.asked["restart"] == received.done["restart"] == 1
        and received.configurations[0].get("plugin.choria.server.provision") == "0"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--version", type=int, required=True)
    parser.add_argument("--jwt", type=Path, required=True)
    parser.add_argument("--tls", type=Path)
    parser.add_argument("--facts", type=int, default=0)
    try:
        trio.run(main, parser.parse_args())
    except* (KeyboardInterrupt, BrokenPipeError):
        os._exit(0)
