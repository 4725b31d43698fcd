"""What many servers cost that only wait: admission, discovery, metrics, memory; and what an idle daemon costs.

    python -m benchmarks.scale [--waiting 100000] [--discovery 10000] [--idle 30]

The daemon is ``choria-provisioner run`` with one worker, which is kept busy by a server that never answers.
"""

import argparse
import itertools
import json
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import trio
from attrs import asdict, frozen

from benchmarks.site import Site, make_site
from benchmarks.throughput import TICK, Failed, child, cpu, memory
from provisioner.bus.interface import Message
from provisioner.bus.nats import NatsBus, open_nats
from provisioner.choria import subjects
from provisioner.choria.events import Event, encode_cloud
from provisioner.choria.security import INSECURE
from provisioner.choria.v1 import V1
from provisioner.choria.wire import DISCOVERY_PONG, NANOSECOND, Reply
from provisioner.simulator.embedded import nats_server
from provisioner.simulator.site import COMPONENT

BATCH = 500
WIRE = V1("", INSECURE)


@frozen(kw_only=True)
class Waiting:
    """So many servers known and waiting. Times in microseconds a server, but milliseconds a page; memory in MiB."""

    servers: int
    admission: float
    answer: float
    rss: float
    metrics_ms: float
    status_ms: float


@frozen(kw_only=True)
class Sweeps:
    """Discoveries of fresh servers, each in one window; milliseconds.

    Attributes:
        found: servers found in each window.
        slip: how late a sweep began at most.
        page: how long ``/healthz`` took at most while answers came in.
    """

    servers: int
    found: tuple[int, ...]
    slip: float
    page: float


@frozen(kw_only=True)
class Idle:
    """A connected daemon without anything to do: percent of a core, and wake-ups a second."""

    percent: float
    wakeups: float
    rss: float


class Daemon:
    """One daemon and its page."""

    def __init__(self, bus: NatsBus, process: trio.Process, port: int) -> None:
        self.bus = bus
        self.process = process
        self._port = port

    async def get(self, path: str) -> tuple[bytes, float]:
        """A page, and the seconds it took."""
        began = time.perf_counter()
        async with await trio.open_tcp_stream("127.0.0.1", self._port) as stream:
            await stream.send_all(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            data = b"".join([chunk async for chunk in stream])
        return data.partition(b"\r\n\r\n")[2], time.perf_counter() - began

    async def metric(self, name: str) -> float:
        """One metric, by its name without the prefix."""
        page, _ = await self.get("/metrics")
        found = re.search(rf"^choria_provisioner_{name}(?:\{{[^}}]*\}})? (\S+)$", page.decode(), re.MULTILINE)
        if found is None:
            raise Failed(f"no metric {name}")
        return float(found[1])

    async def until(self, name: str, value: float, *, seconds: float = 120) -> None:
        """Waits until a metric has reached a value."""
        with trio.move_on_after(seconds):
            while await self.metric(name) < value:
                await trio.sleep(0.2)
            return
        raise Failed(f"{name} is {await self.metric(name):g} after {seconds:g} s, not {value:g}")


async def free_port() -> int:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port: int = listeners[0].socket.getsockname()[1]
    for listener in listeners:
        await listener.aclose()
    return port


@asynccontextmanager
async def daemon(site: Site, *, every: float = 0, **keys: object) -> AsyncIterator[Daemon]:
    """A daemon that is connected, and a bus for whoever plays its servers. ``every``: an interval users can't set."""
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(nats_server())

        async def resolve() -> list[str]:
            return [broker.url]

        bus = await stack.enter_async_context(open_nats(resolve))
        await bus.wait_connected()
        port = await free_port()
        yaml, choria = site.write_configuration(
            "waiting",
            broker.port,
            version=1,
            transport="plain",
            helper="sh",
            workers=1,
            signed=False,
            **{"features": {}, "interval": "30m", "monitor_port": port, **keys},
        )
        command = [sys.executable, "-m", "provisioner.cli.choria", "run"]
        command += ["--config", str(yaml), "--choria-config", str(choria)]
        if every:
            command = [sys.executable, "-m", "benchmarks.daemon", str(yaml), str(choria)]
            command += ["--unsigned", "--no-tls", "--interval", str(every)]
        process = await stack.enter_async_context(child(command, site.path("waiting.output")))
        one = Daemon(bus, process, port)
        with trio.fail_after(60):
            while True:
                try:
                    await one.until("discover_cycles", 1)
                    break
                except OSError:
                    if process.poll() is not None:
                        raise Failed(site.path("waiting.output").read_text()) from None
                    await trio.sleep(0.05)
        yield one


def startup(identity: str, number: int) -> bytes:
    event = Event("startup", f"{number:032x}", identity, COMPONENT, int(time.time()), "0.30.2", "")
    return encode_cloud(event)


async def publish_all(bus: NatsBus, messages: Iterator[tuple[str, bytes]]) -> None:
    for place, (subject, data) in enumerate(messages):
        bus.publish(subject, data)
        if place % BATCH == BATCH - 1:
            await bus.flush(60)
    await bus.flush(60)


def answers(request: Message, names: list[str]) -> Iterator[tuple[str, bytes]]:
    asked = WIRE.decode_request(request.data)
    now = int(time.time() * NANOSECOND)
    for name in names:
        reply = Reply(asked.id, "discovery", name, now, DISCOVERY_PONG)
        yield asked.reply_to, WIRE.encode_reply(reply, url="nats://127.0.0.1")


async def waiting(site: Site, most: int) -> list[Waiting]:
    """More and more servers announce themselves and wait; at each step all of them also answer a discovery."""
    found = []
    subject = subjects.event("startup", COMPONENT)
    send, requests = trio.open_memory_channel[Message](100)
    async with daemon(site) as one:
        pid = one.process.pid
        known = 0
        for servers in sorted({most // 10, most // 4, most // 2, most * 3 // 4, most}):
            names = [f"w{number}.example.net" for number in range(known, servers)]
            events = [(subject, startup(name, number)) for number, name in enumerate(names)]
            before = cpu(pid)[0]
            await publish_all(one.bus, iter(events))
            await one.until("event_discovered", servers)
            admission = (cpu(pid)[0] - before) / (servers - known)
            known = servers
            everybody = [f"w{number}.example.net" for number in range(known)]
            # A sweep over a fleet that waits: the cost of an answer by a server that is known.
            async with one.bus.subscribe(subjects.broadcast("discovery"), send.send_nowait):
                one.process.send_signal(1)  # SIGHUP: the configuration anew, and a look around
                request = await requests.receive()
                # The last one is new: when it is counted, all were looked at.
                ready = list(answers(request, [*everybody[:20_000], f"last{known}.example.net"]))
                discovered = await one.metric("discovered")
                before = cpu(pid)[0]
                await publish_all(one.bus, iter(ready))
                await one.until("discovered", discovered + 1)
                answer = (cpu(pid)[0] - before) / len(ready)
            pages = {path: sorted([(await one.get(path))[1] for _ in range(5)])[2] for path in ("/metrics", "/status")}
            if (there := await one.metric("waiting_nodes")) < known - 2:
                raise Failed(f"{there:g} servers wait, not {known}")
            found.append(
                Waiting(
                    servers=known,
                    admission=admission * 1e6,
                    answer=answer * 1e6,
                    rss=memory(pid, "VmRSS"),
                    metrics_ms=pages["/metrics"] * 1000,
                    status_ms=pages["/status"] * 1000,
                )
            )
    return found


async def sweeps(site: Site, servers: int, *, times: int = 5, interval: int = 6) -> Sweeps:
    """Each sweep is answered by so many fresh servers at once; the slip is that of the ticker."""
    send, requests = trio.open_memory_channel[tuple[float, Message]](100)
    begun: list[float] = []
    found: list[int] = []
    slowest = 0.0

    def on_request(message: Message) -> None:
        send.send_nowait((time.perf_counter(), message))

    async def watch() -> None:
        nonlocal slowest
        while True:
            slowest = max(slowest, (await one.get("/healthz"))[1])
            await trio.sleep(0.02)

    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(daemon(site, every=interval))
        async with one.bus.subscribe(subjects.broadcast("discovery"), on_request), trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            for sweep in range(times):
                at, request = await requests.receive()
                begun.append(at)
                before = await one.metric("discovered")
                names = [f"s{sweep}n{number}.example.net" for number in range(servers)]
                await publish_all(one.bus, answers(request, names))
                await trio.sleep(1.0)
                found.append(int(await one.metric("discovered") - before))
            at, _ = await requests.receive()
            begun.append(at)
            nursery.cancel_scope.cancel()
    late = [after - before - interval for before, after in itertools.pairwise(begun)]
    return Sweeps(servers=servers, found=tuple(found), slip=max(late) * 1000, page=slowest * 1000)


async def idle(site: Site, seconds: float) -> Idle:
    """A daemon that has nothing to do."""
    async with daemon(site, interval="1m") as one:
        pid = one.process.pid
        await trio.sleep(3)
        before, switches = cpu(pid)[0], _switches(pid)
        await trio.sleep(seconds)
        used = cpu(pid)[0] - before
        return Idle(
            percent=100 * max(used, 0.5 / TICK) / seconds,
            wakeups=(_switches(pid) - switches) / seconds,
            rss=memory(pid, "VmRSS"),
        )


def _switches(pid: int) -> int:
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        found = re.search(r"^voluntary_ctxt_switches:\s+(\d+)", (task / "status").read_text(), re.MULTILINE)
        assert found
        total += int(found[1])
    return total


async def all_of_it(arguments: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="benchmark.") as directory:
        site = make_site(Path(directory))
        results: list[Any] = [await idle(site, arguments.idle), await sweeps(site, arguments.discovery)]
        results += await waiting(site, arguments.waiting)
        for result in results:
            print(type(result).__name__, json.dumps(asdict(result)), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--waiting", type=int, default=100_000)
    parser.add_argument("--discovery", type=int, default=10_000)
    parser.add_argument("--idle", type=float, default=30.0)
    trio.run(all_of_it, parser.parse_args())
