"""Three instances that share a fleet against one that has it alone, in the same run (docs/instances.md).

    python -m benchmarks.sharing [--servers 1000] [--instances 3] [--workers 8] [--rounds 3]

Everything is on one machine, so more instances bring more processes to the same cores: what is seen here is what
sharing costs, and that each server is done exactly once. Prints one line of JSON a round.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import trio

from provisioner.bus.nats import NatsBus, open_nats
from provisioner.leader.sharing import LISTEN_FIRST
from provisioner.simulator.embedded import NatsServer, nats_server
from provisioner.simulator.fleet import make_servers, open_fleet
from provisioner.simulator.site import Site

HELPER = '#!/bin/sh\ncat >/dev/null\necho \'{"configuration":{"plugin.choria.server.provision":"0"}}\'\n'


async def start(stack: AsyncExitStack, directory: Path, server: NatsServer, name: str, **keys: Any) -> None:
    """One daemon, ended with the stack."""
    directory = directory / name
    directory.mkdir()
    helper = directory / "helper"
    helper.write_text(HELPER)
    helper.chmod(0o755)
    (directory / "choria.cfg").write_text(f"identity={name}\nplugin.choria.middleware_hosts=127.0.0.1:{server.port}\n")
    yaml = {
        "helper": str(helper),
        "token": "s3cret",
        "site": "bench",
        "choria_insecure": True,
        "loglevel": "warn",
        **keys,
    }
    (directory / "provisioner.yaml").write_text(json.dumps(yaml | {"logfile": str(directory / "log")}))
    argv = [sys.executable, "-m", "provisioner.cli.choria", "run", "--config", str(directory / "provisioner.yaml")]
    process = await trio.lowlevel.open_process([*argv, "--choria-config", str(directory / "choria.cfg")])

    async def end() -> None:
        process.terminate()
        await process.wait()

    stack.push_async_callback(end)


async def measure(bus: NatsBus, server: NatsServer, servers: int, instances: int, workers: int) -> float:
    """Servers a second of so many instances.

    Raises:
        SystemExit: a server was configured or restarted more or less than once.
    """
    made = make_servers(servers, version=1, token="s3cret", now=time.time(), site=Site(token="", jwt=""))
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for number in range(instances):
            await start(stack, directory, server, f"p{number}.example.net", workers=workers, sharing=instances > 1)
        await trio.sleep(LISTEN_FIRST + 2)
        fleet = await stack.enter_async_context(open_fleet(bus, made.servers))
        began = trio.current_time()
        await fleet.announce()
        received = [one.node.received for one in made.servers]
        await fleet.wait_until(lambda: sum(one.done["restart"] for one in received) >= servers)
        seconds = trio.current_time() - began
    if {(len(one.configurations), one.done["restart"]) for one in received} != {(1, 1)}:
        raise SystemExit("a server was not done exactly once: these numbers count for nothing")
    return servers / seconds


async def main(arguments: argparse.Namespace) -> None:
    """Alone and together in turn."""
    async with nats_server() as server:

        async def resolve() -> list[str]:
            return [server.url]

        async with open_nats(resolve) as bus:
            await bus.wait_connected()
            for number in range(arguments.rounds):
                alone = await measure(bus, server, arguments.servers, 1, arguments.workers)
                together = await measure(bus, server, arguments.servers, arguments.instances, arguments.workers)
                print(
                    json.dumps(
                        {
                            "round": number + 1,
                            "alone": round(alone),
                            "together": round(together),
                            "ratio": round(together / alone, 2),
                            "load": round(os.getloadavg()[0], 1),
                        }
                    ),
                    flush=True,
                )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", type=int, default=1000)
    parser.add_argument("--instances", type=int, default=3)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    trio.run(main, parser.parse_args())
