"""The fleet of a benchmark: servers as cheap as can be, in a process of their own, told by lines of JSON what to do.

    python -m benchmarks.fleet --url URL --version 1|2 --jwt FILE [--tls DIRECTORY] [--facts BYTES]

It shares the machine with what is measured, so it does little: answers are the simulator's, but made beforehand, and a
request that many servers are sent alike is opened once. It prints ``{"event": "looked"}`` whenever a provisioner sends
a discovery. For each line ``{"servers": N}`` that it reads, N fresh servers come up and announce themselves; when all
were restarted into their configuration it prints what happened, checked: each was configured and restarted just once.
"""

import argparse
import gc
import json
import os
import ssl
import sys
import time
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any

import trio
from attrs import define, field

from benchmarks.site import TOKEN
from provisioner.bus.interface import Message
from provisioner.bus.nats import NatsBus, Options, open_nats
from provisioner.choria import subjects, transport
from provisioner.choria.events import Event, encode_cloud
from provisioner.choria.rpc import RPCRequest, decode_rpc_request, encode_rpc_reply
from provisioner.choria.wire import DISCOVERY_PONG, NANOSECOND, Reply, Request, Wire
from provisioner.simulator.node import Node
from provisioner.simulator.server import server_wire
from provisioner.simulator.site import COMPONENT, Site

AT_ONCE = 100
"""Messages sent before others have their turn."""
KEYS = 64
"""Answers to ``jwt`` made beforehand, each with a key of its own."""
OPENED = 16
"""Opened requests that are remembered."""


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


@define
class Received:
    """What one server was told to do: its configurations, and how often to restart. ``wrong`` counts the rest."""

    configurations: list[dict[str, str]] = field(factory=list)
    restarts: int = 0
    wrong: int = 0

    @property
    def once(self) -> bool:
        """Whether it was configured and then restarted exactly once, and asked nothing odd."""
        configured = [one.get("plugin.choria.server.provision") for one in self.configurations]
        return (configured, self.restarts, self.wrong) == (["0"], 1, 0)


class Servers:
    """All servers of a round, on one connection."""

    def __init__(self, bus: NatsBus, wire: Wire, site: Site) -> None:
        self.received: dict[str, Received] = {}
        self.provisioned = trio.Event()
        self._left = 0
        self._bus = bus
        self._wire = wire
        self._names = transport.V1 if wire.version == 1 else transport.V2
        self._opened: dict[bytes, tuple[Request, RPCRequest]] = {}
        node = Node("any.example.net", site, Random(0))

        def answer(agent: str, action: str, **data: Any) -> bytes:
            body = node.answer(RPCRequest(agent, action, {"token": TOKEN, **data}), "", "", "", time.time()).body
            assert body is not None
            return body

        self._jwts = cycle([answer("choria_provision", "jwt") for _ in range(KEYS)])
        self._inventory = answer("rpcutil", "inventory")

    async def come_up(self, names: list[str]) -> None:
        """Fresh servers, each of which announces itself."""
        self.received = {name: Received() for name in names}
        self._left = len(names)
        self.provisioned = trio.Event()
        for place, name in enumerate(names):
            id_ = f"00000000-0000-4000-8000-{place:012}"
            event = Event("startup", id_, name, COMPONENT, int(time.time()), "0.30.0")
            self._bus.publish(event.subject, encode_cloud(event))
            if place % AT_ONCE == AT_ONCE - 1:
                await trio.lowlevel.checkpoint()

    def on_discovery(self, message: Message) -> None:
        say(event="looked", at=time.time())
        request = self._wire.decode_request(message.data)
        for name, received in self.received.items():
            if not received.restarts:
                self._reply(name, request, request.reply_to, DISCOVERY_PONG)

    def on_request(self, message: Message) -> None:
        name = message.subject[len(subjects.node("")) :]
        received = self.received.get(name)
        if received is None:
            return
        outer = transport.decode(self._names, message.data)
        if outer.body not in self._opened:
            if len(self._opened) == OPENED:
                self._opened.clear()
            request = self._wire.decode_request(message.data)
            self._opened[outer.body] = request, decode_rpc_request(request.payload)
        request, body = self._opened[outer.body]
        self._reply(name, request, outer.reply_to, self._answer(received, body))

    def _answer(self, received: Received, body: RPCRequest) -> bytes:
        if body.action == "inventory":
            return self._inventory
        if body.data.get("token") == TOKEN:
            match body.action:
                case "jwt":
                    return next(self._jwts)
                case "configure":
                    received.configurations.append(json.loads(body.data["config"]))
                    return encode_rpc_reply("configure", {"message": "Wrote 3 lines to /etc/choria/server.cfg"})
                case "restart":
                    received.restarts += 1
                    self._left -= received.restarts == 1
                    if self._left == 0:
                        self.provisioned.set()
                    return encode_rpc_reply("restart", {"message": "Restarting Choria Server after 1s"})
        received.wrong += 1
        return encode_rpc_reply(body.action, {}, statuscode=1, statusmsg="not asked for in a benchmark")

    def _reply(self, name: str, request: Request, reply_to: str, payload: bytes) -> None:
        reply = Reply(request.id, request.agent, name, int(time.time() * NANOSECOND), payload)
        self._bus.publish(reply_to, self._wire.encode_reply(reply, url=self._bus.url))


async def main(arguments: argparse.Namespace) -> None:
    async def resolve() -> list[str]:
        return [arguments.url]

    options = Options(name="fleet", tls=(lambda: tls(arguments.tls)) if arguments.tls else None)
    site = Site(token=TOKEN, jwt=arguments.jwt.read_text(), facts=facts_of(arguments.facts))
    async with open_nats(resolve, options) as bus:
        await bus.wait_connected()
        servers = Servers(bus, server_wire(arguments.version), site)
        async with (
            bus.subscribe(subjects.node(">"), servers.on_request),
            bus.subscribe(subjects.broadcast("discovery"), servers.on_discovery),
        ):
            say(event="ready")
            lines = trio.wrap_file(sys.stdin)
            number = 0
            while line := await lines.readline():
                number += 1
                await one_round(servers, number, **json.loads(line))


async def one_round(fleet: Servers, number: int, servers: int) -> None:
    names = [f"r{number}n{place}.example.net" for place in range(servers)]
    gc.collect()
    gc.freeze()
    cpu, began = time.process_time(), time.perf_counter()
    await fleet.come_up(names)
    await fleet.provisioned.wait()
    elapsed = time.perf_counter() - began
    say(
        event="done",
        servers=servers,
        seconds=elapsed,
        cpu=time.process_time() - cpu,
        wrong=[name for name, received in fleet.received.items() if not received.once],
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
