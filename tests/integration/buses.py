"""One way to make, cut and heal a bus of either kind."""

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from itertools import repeat
from pathlib import Path
from typing import Any, Protocol

import trio

from provisioner.bus.interface import Bus
from provisioner.bus.login import Credentials
from provisioner.bus.memory import MemoryBroker, MemoryBus
from provisioner.bus.memory_streams import MemoryStreams
from provisioner.bus.nats import NatsBus, Options, Resolve, open_nats
from provisioner.secret import Secret
from provisioner.simulator.embedded import NatsServer, nats_server

ACCOUNTS = """
max_payload: {max_payload}
authorization {{
  users = [
    {{ user: free, password: "f" }}
    {{ user: bound, password: "b", permissions: {{
        publish: {{ deny: "Secret.>" }}, subscribe: {{ deny: "Secret.>" }} }} }}
  ]
}}
"""


def quick() -> Iterator[float]:
    """Tries again often: the tests wait for it."""
    return repeat(0.05)


def at(*servers: NatsServer) -> Resolve:
    """A resolver of these."""

    async def resolve() -> Sequence[str]:
        return [server.url for server in servers]

    return resolve


def user(name: str, password: str, **more: Any) -> Options:
    """Options with a user and a password."""
    more = {"delays": quick} | more
    return Options(credentials=lambda: Credentials(user=name, password=Secret(password)), **more)


@asynccontextmanager
async def connected(resolve: Resolve, options: Options | None = None) -> AsyncIterator[NatsBus]:
    """A bus on NATS that is connected."""
    async with open_nats(resolve, options or Options(delays=quick)) as bus:
        with trio.fail_after(20):
            await bus.wait_connected()
        yield bus


class World(Protocol):
    """A broker with a limit of 65,536 bytes whose clients can be cut off and brought back together.

    A *bound* client may neither publish nor subscribe to ``Secret.>``.
    """

    def connect(self, *, bound: bool = False) -> AbstractAsyncContextManager[Bus]: ...

    async def cut(self) -> None: ...

    async def heal(self) -> None: ...

    async def consumers(self, bucket: str) -> list[str]: ...


LIMIT = 65536


class MemoryWorld:
    def __init__(self) -> None:
        self.broker = MemoryBroker(max_payload=LIMIT)
        self.streams = MemoryStreams(self.broker)

    @asynccontextmanager
    async def connect(self, *, bound: bool = False) -> AsyncIterator[MemoryBus]:
        denied = ["Secret.>"] if bound else []
        yield self.broker.connect(deny_publish=denied, deny_subscribe=denied)

    async def cut(self) -> None:
        self.broker.stop()

    async def heal(self) -> None:
        self.broker.start()

    async def consumers(self, bucket: str) -> list[str]:
        return list(self.streams.buckets[f"KV_{bucket}"].consumers)


class NatsWorld:
    def __init__(self, server: NatsServer) -> None:
        self.server = server

    @asynccontextmanager
    async def connect(self, *, bound: bool = False) -> AsyncIterator[NatsBus]:
        options = user("bound", "b") if bound else user("free", "f")
        async with connected(at(self.server), options) as bus:
            yield bus

    async def cut(self) -> None:
        await self.server.kill()

    async def heal(self) -> None:
        await self.server.start()

    async def consumers(self, bucket: str) -> list[str]:
        async with self.connect() as bus:
            reply = await bus.request(f"$JS.API.CONSUMER.NAMES.KV_{bucket}", b"", timeout=20)
        return list(json.loads(reply.data)["consumers"] or [])


@asynccontextmanager
async def world_of(kind: str, directory: Path) -> AsyncIterator[World]:
    """The world of one kind: ``memory`` or ``nats``."""
    async with AsyncExitStack() as stack:
        if kind == "memory":
            yield MemoryWorld()
        else:
            config = ACCOUNTS.format(max_payload=LIMIT)
            yield NatsWorld(await stack.enter_async_context(nats_server(config, jetstream=True, directory=directory)))
