"""How fast ``mesh-provisioner`` answers, and what it holds: 50,000 items of a collection over 500 nodes.

    python benchmarks/registry.py [--keys 50000] [--nodes 500] [--json]

The service runs as its own process under its own account; the asker is this process. Times are seen by the asker.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from provisioner.bus.keyvalue import KeyValue
from provisioner.bus.login import Credentials
from provisioner.bus.nats import NatsBus, Options, open_nats
from provisioner.errors import BusError, RegistryError
from provisioner.registry.client import VERB, ask, ask_pages
from provisioner.registry.keys import COLLECT, SHAPES
from provisioner.secret import Secret
from provisioner.simulator.embedded import NatsServer, nats_server

ACCOUNTS = Path(__file__).parents[1] / "docs" / "examples" / "mesh-accounts.conf"
COLLECTIONS = 20
AT_ONCE = 200


@asynccontextmanager
async def account(server: NatsServer, user: str, password: str) -> AsyncIterator[NatsBus]:
    async def servers() -> Sequence[str]:
        return [server.url]

    async with open_nats(
        servers, Options(credentials=lambda: Credentials(user=user, password=Secret(password)))
    ) as bus:
        await bus.wait_connected()
        yield bus


@asynccontextmanager
async def service(server: NatsServer) -> AsyncIterator[trio.Process]:
    password = server.directory / "password"
    password.write_text("service-secret")
    command = [sys.executable, "-m", "provisioner.cli.mesh", "serve", "--servers", server.url]
    command += ["--user", "mesh-provisioner", "--password-file", str(password)]
    with (server.directory / "service.log").open("wb") as log:
        process = await trio.lowlevel.open_process(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()


def memory(process: trio.Process) -> tuple[float, float]:
    """MiB held now and at the most."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    found = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith(("VmRSS", "VmHWM"))}
    return int(found["VmRSS"]) / 1024, int(found["VmHWM"]) / 1024


async def fill(bus: NatsBus, keys: int, nodes: int) -> None:
    for number in range(keys):
        node, item = number % nodes, number // nodes
        key = COLLECT.key(f"node{node}.example.net", f"shell:{item % COLLECTIONS}", f"module{item}")
        bus.publish(f"$KV.{COLLECT.bucket}.{key}", json.dumps({"order": number, "text": "x" * 60}).encode())
        if number % 500 == 0:
            await bus.flush(60)
    await bus.flush(60)


async def ready(bus: NatsBus, what: str, items: int) -> None:
    while True:
        try:
            page = await anext(ask_pages(bus, what))
            if page.items or not items:
                return
        except (BusError, RegistryError):
            await trio.sleep(0.02)


async def timed(work: Callable[[], Awaitable[object]], times: int) -> list[float]:
    found = []
    for _ in range(times):
        started = time.perf_counter()
        await work()
        found.append(time.perf_counter() - started)
    return found


def spread(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {
        "median_ms": round(statistics.median(ordered) * 1000, 2),
        "p99_ms": round(ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))] * 1000, 2),
        "max_ms": round(ordered[-1] * 1000, 2),
    }


async def pages(bus: NatsBus) -> tuple[list[float], int]:
    times, items, started = [], 0, time.perf_counter()
    async for page in ask_pages(bus, "collect", timeout=30):
        times.append(time.perf_counter() - started)
        items += len(page.items)
        started = time.perf_counter()
    return times, items


async def at_once(bus: NatsBus, questions: list[bytes]) -> dict[str, Any]:
    answered: list[float] = []
    errors: list[Any] = []
    started = time.perf_counter()

    async def question(data: bytes) -> None:
        answer = await bus.request(VERB, data, timeout=60)
        answered.append(time.perf_counter() - started)
        if answer.data.startswith(b'{"error"'):
            errors.append(json.loads(answer.data))

    async with trio.open_nursery() as nursery:
        for data in questions:
            nursery.start_soon(question, data)
    return {"answered": len(answered), "errors": len(errors), "total_s": round(max(answered), 3), **spread(answered)}


async def benchmark(keys: int, nodes: int) -> dict[str, Any]:
    found: dict[str, Any] = {"keys": keys, "nodes": nodes}
    async with nats_server(ACCOUNTS.read_text(), jetstream=True) as server, AsyncExitStack() as stack:
        controller = await stack.enter_async_context(account(server, "controller", "controller-secret"))
        asker = await stack.enter_async_context(account(server, "n1-client", "n1-secret"))
        for shape in SHAPES.values():
            await KeyValue(controller, shape.bucket).create_bucket()
        async with service(server) as process:
            await ready(asker, "registry", 13)
            found["memory empty, MiB"] = round(memory(process)[0], 1)
        await fill(controller, keys, nodes)
        started = time.perf_counter()
        async with service(server) as process:
            await ready(asker, "collect", keys)
            found["start to first answer, s"] = round(time.perf_counter() - started, 2)
            found["memory full, MiB"] = round(memory(process)[0], 1)

            async def node() -> None:
                page = await ask(asker, "collect", node="node7.example.net")
                assert len(page.items) == keys // nodes, len(page.items)

            async def module() -> None:
                page = await ask(asker, "collect", module="module3")
                assert len(page.items) == nodes

            async def nobody() -> None:
                assert not (await ask(asker, "collect", module="nobody")).items

            found["one node"] = spread(await timed(node, 300))
            found["one module of all nodes"] = spread(await timed(module, 50))
            found["nobody's"] = spread(await timed(nobody, 50))
            reads = []
            for _ in range(3):
                times, items = await pages(asker)
                assert items == keys
                reads.append(times)
            every = [seconds for times in reads for seconds in times]
            found["all, paged"] = {
                "pages": len(reads[0]),
                "total_s": round(statistics.median(map(sum, reads)), 2),
                "first_page_ms": round(statistics.median(times[0] for times in reads) * 1000, 1),
                "last_full_page_ms": round(statistics.median(times[-2] for times in reads) * 1000, 1),
                **spread(every),
            }
            questions = [
                json.dumps({"what": "collect", "node": f"node{number % nodes}.example.net"}).encode()
                for number in range(AT_ONCE)
            ]
            found[f"{AT_ONCE} nodes' at once"] = await at_once(asker, questions)
            found[f"{AT_ONCE} full pages at once"] = await at_once(asker, [b'{"what":"collect"}'] * AT_ONCE)
            now, most = memory(process)
            found["memory after, MiB"] = round(now, 1)
            found["memory at the most, MiB"] = round(most, 1)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=50_000)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = trio.run(benchmark, arguments.keys, arguments.nodes)
    if arguments.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        text = ", ".join(f"{key} {each}" for key, each in value.items()) if isinstance(value, dict) else value
        print(f"{name:28} {text}")


if __name__ == "__main__":
    main()
