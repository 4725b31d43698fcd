"""What everything is measured against, on the same machine in the same run: bare spawns, and echoes over the bus.

    python -m benchmarks.yardstick [--seconds 2]

A spawn is the cheapest there is: ``posix_spawn`` of the helper with three pipes in a session of its own, the question
written, the answer read to its end, the exit code awaited; two loops a core and nothing else. An echo is a request over
the broker from one process to another and back, 32 at a time, through the same bus that the provisioner uses.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from subprocess import PIPE

import trio

from benchmarks.fleet import tls
from benchmarks.site import Helper, Site, Transport, make_site
from benchmarks.throughput import ROOT, Failed, child
from provisioner.bus.interface import Message
from provisioner.bus.nats import NatsBus, Options, open_nats
from provisioner.simulator.embedded import nats_server

QUESTION = json.dumps({"identity": "n1.example.net", "inventory": "{}", "jwt": {"padding": "x" * 900}}).encode()
ECHO = b"x" * 1300
"""About what a request of the provisioner has on the average."""
AT_ONCE = 32


def spawn_once(program: str) -> None:
    (child_in, our_in), (our_out, child_out), (our_err, child_err) = os.pipe(), os.pipe(), os.pipe()
    actions = [
        (os.POSIX_SPAWN_DUP2, child_in, 0),
        (os.POSIX_SPAWN_DUP2, child_out, 1),
        (os.POSIX_SPAWN_DUP2, child_err, 2),
    ]
    pid = os.posix_spawn(program, [program], os.environ, file_actions=actions, setsid=True)
    for descriptor in (child_in, child_out, child_err):
        os.close(descriptor)
    os.write(our_in, QUESTION)
    os.close(our_in)
    answer = b""
    while chunk := os.read(our_out, 65536):
        answer += chunk
    os.close(our_out)
    os.close(our_err)
    _, status = os.waitpid(pid, 0)
    if status or b"configuration" not in answer:
        raise Failed(f"{program} did not answer")


def spawn_loop(program: str, seconds: float) -> None:
    spawn_once(program)
    print("ready", flush=True)
    sys.stdin.readline()
    end, number = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        spawn_once(program)
        number += 1
    print(number / seconds, flush=True)


async def _loops(arguments: list[str], processes: int, log: Path) -> list[float]:
    """Runs loops of this module side by side, started at one moment; what each printed."""
    command = [sys.executable, "-m", "benchmarks.yardstick", *arguments]
    async with AsyncExitStack() as stack:
        loops = [
            await stack.enter_async_context(child(command, log, stdin=PIPE, stdout=PIPE)) for _ in range(processes)
        ]
        for loop in loops:
            if await _line(loop) != "ready":
                raise Failed(f"a yardstick did not start: {log}")
        for loop in loops:
            assert loop.stdin is not None
            await loop.stdin.send_all(b"\n")
        return [float(await _line(loop)) for loop in loops]


async def _line(process: trio.Process) -> str:
    assert process.stdout is not None
    data = b""
    while not data.endswith(b"\n") and (chunk := await process.stdout.receive_some()):
        data += chunk
    return data.decode().strip()


async def spawns(site: Site, helper: Helper, seconds: float = 2.0) -> float:
    """Bare spawns of a helper a second."""
    program = str(site.path(f"helper-{helper}"))
    arguments = ["--spawn", program, "--seconds", str(seconds)]
    return sum(await _loops(arguments, 2 * (os.cpu_count() or 1), site.path("yardstick.log")))


async def echoes(site: Site, transport: Transport, seconds: float = 2.0) -> float:
    """Echo requests a second over a broker of this transport."""
    async with nats_server(site.broker(transport)) as broker:
        url = f"{'tls' if transport == 'tls' else 'nats'}://127.0.0.1:{broker.port}"
        arguments = ["--url", url, "--seconds", str(seconds)]
        arguments += ["--tls", str(site.directory)] if transport == "tls" else []
        log = site.path("yardstick.log")
        command = [sys.executable, "-m", "benchmarks.yardstick", "--serve", *arguments]
        async with child(command, log, stdout=PIPE) as responder:
            await _line(responder)
            return sum(await _loops(["--ask", *arguments], 1, log))


async def echo(arguments: argparse.Namespace) -> None:
    async def resolve() -> list[str]:
        return [arguments.url]

    options = Options(tls=(lambda: tls(arguments.tls)) if arguments.tls else None)
    async with open_nats(resolve, options) as bus:
        await bus.wait_connected()
        if arguments.serve:

            def answer(message: Message) -> None:
                bus.publish(message.reply, message.data)

            async with bus.subscribe("echo", answer):
                print("ready", flush=True)
                await trio.sleep_forever()
        await bus.request("echo", ECHO, timeout=10)
        print("ready", flush=True)
        await trio.to_thread.run_sync(sys.stdin.readline)
        print(await _ask(bus, arguments.seconds), flush=True)


async def _ask(bus: NatsBus, seconds: float) -> float:
    number = 0

    async def ask() -> None:
        nonlocal number
        while True:
            await bus.request("echo", ECHO, timeout=10)
            number += 1

    with trio.move_on_after(seconds):
        async with trio.open_nursery() as nursery:
            for _ in range(AT_ONCE):
                nursery.start_soon(ask)
    return number / seconds


async def all_of_them(seconds: float) -> None:
    with tempfile.TemporaryDirectory(prefix="benchmark.") as directory:
        site = make_site(Path(directory))
        helpers: tuple[Helper, ...] = ("sh", "python")
        for helper in helpers:
            print(f"{await spawns(site, helper, seconds):8.0f} spawns of the {helper} helper a second")
        transports: tuple[Transport, ...] = ("plain", "tls")
        for transport in transports:
            print(f"{await echoes(site, transport, seconds):8.0f} echoes a second, {transport}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--spawn")
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--ask", action="store_true")
    parser.add_argument("--url")
    parser.add_argument("--tls", type=Path)
    given = parser.parse_args()
    os.chdir(ROOT)
    if given.spawn:
        spawn_loop(given.spawn, given.seconds)
    elif given.url:
        trio.run(echo, given)
    else:
        trio.run(all_of_them, given.seconds)
