"""A mesh for tests: a real nats-server with the accounts that docs/ ships, the four buckets, a running service."""

import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import trio
from prometheus_client import CollectorRegistry

from provisioner.bus.interface import Bus
from provisioner.bus.keyvalue import KeyValue
from provisioner.bus.nats import NatsBus
from provisioner.errors import BusError, RegistryError
from provisioner.registry.client import VERB, Page, ask, read_answer
from provisioner.registry.keys import SHAPES
from provisioner.registry.serve import Service
from provisioner.simulator.embedded import NatsServer, nats_server
from tests.integration.buses import at, connected, user
from tests.integration.daemon import free_port

ACCOUNTS = Path(__file__).parents[2] / "docs" / "examples" / "mesh-accounts.conf"
PASSWORDS = {
    "controller": "controller-secret",
    "mesh-provisioner": "service-secret",
    "n1-client": "n1-secret",
    "n2-client": "n2-secret",
    "n3-client": "n3-secret",
    "postgres-provider": "provider-secret",
}
GENEROUS = 20.0
"""Seconds in which things that take milliseconds have to be done on a busy machine."""


class Mesh:
    """The server, a connection of the controller's, and one of node n1's client."""

    def __init__(self, server: NatsServer, controller: NatsBus, client: NatsBus) -> None:
        self.server = server
        self.controller = controller
        self.client = client

    def account(self, name: str) -> Any:
        """Opens a connection of one of the accounts."""
        return connected(at(self.server), user(name, PASSWORDS[name]))

    def bucket(self, what: str, bus: Bus | None = None) -> KeyValue:
        """A bucket, as the controller has it."""
        return KeyValue(bus or self.controller, SHAPES[what].bucket)

    async def make_buckets(self, *names: str) -> None:
        for what in names or SHAPES:
            await self.bucket(what).create_bucket()

    async def delete_bucket(self, what: str) -> None:
        await self.bucket(what).api(f"STREAM.DELETE.KV_{SHAPES[what].bucket}")

    async def store(self, what: str, key: str, value: bytes) -> None:
        """Stores under any key that a subject can have, as a careless client does."""
        subject = f"$KV.{SHAPES[what].bucket}.{key}"
        reply = await self.controller.request(subject, value, timeout=GENEROUS)
        assert b'"seq"' in reply.data, reply.data

    async def ask(self, what: str = "registry", **narrowing: str) -> Page:
        return await ask(self.client, what, timeout=GENEROUS, **narrowing)

    async def code(self, what: str = "registry", **narrowing: str) -> str:
        """The word of the error that a question is answered with; ``""`` when it is answered well."""
        try:
            await self.ask(what, **narrowing)
        except RegistryError as error:
            return error.code
        return ""

    async def until_answered(self, what: str = "registry", items: int | None = None) -> Page:
        """Asks again and again until there is an answer (with so many items). Never accepts a wrong one."""
        with trio.fail_after(GENEROUS):
            while True:
                try:
                    page = await self.ask(what)
                except BusError:  # asker or service is not connected again yet
                    pass
                except RegistryError as error:
                    if error.code != "unavailable":
                        raise
                else:
                    if items is None or len(page.items) == items:
                        return page
                await trio.sleep(0.05)

    async def raw(self, data: bytes) -> Any:
        """Sends any bytes to the verb and reads the answer."""
        return read_answer((await self.client.request(VERB, data, timeout=GENEROUS)).data)


@asynccontextmanager
async def mesh(directory: Path, *, config: str = "", buckets: bool = True) -> AsyncIterator[Mesh]:
    """Opens one. ``config`` comes before the accounts in the server's configuration."""
    async with nats_server(config + ACCOUNTS.read_text(), jetstream=True, directory=directory) as server:
        controller = connected(at(server), user("controller", PASSWORDS["controller"]))
        client = connected(at(server), user("n1-client", PASSWORDS["n1-client"]))
        async with controller as one, client as two:
            made = Mesh(server, one, two)
            if buckets:
                await made.make_buckets()
            yield made


@asynccontextmanager
async def running(bus: Bus, **arguments: Any) -> AsyncIterator[Service]:
    """Runs a service that listens to the verb."""
    service = Service(bus, CollectorRegistry())
    async with trio.open_nursery() as nursery:
        with trio.fail_after(GENEROUS):

            async def run(task_status: Any) -> None:
                await service.run(**arguments, task_status=task_status)

            await nursery.start(run)
        yield service
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def served(directory: Path, **arguments: Any) -> AsyncIterator[tuple[Mesh, Service]]:
    """A mesh with a service under its own account, whose registry is up to date."""
    async with mesh(directory, **arguments) as made, made.account("mesh-provisioner") as bus, running(bus) as service:
        await until_ready(service)
        yield made, service


async def until_ready(service: Service) -> None:
    with trio.fail_after(GENEROUS):
        while service.problems():
            await trio.sleep(0.02)


async def revisions(made: Mesh, what: str = "registry") -> dict[str, int]:
    """The revision of each key of a bucket."""
    return {key: entry.revision for key, entry in (await made.bucket(what).entries()).items()}


# --- the program ---

PROGRAM = [sys.executable, "-m", "provisioner.cli.mesh"]


def connection(made: Mesh, directory: Path, account: str) -> list[str]:
    password = directory / f"{account}.password"
    password.write_text(PASSWORDS[account] + "\n")
    return ["--servers", made.server.url, "--user", account, "--password-file", str(password)]


@asynccontextmanager
async def serving(
    directory: Path, *arguments: str, environ: Mapping[str, str] = MappingProxyType({})
) -> AsyncIterator[tuple[trio.Process, int]]:
    """The daemon and its monitor's port; killed at the end if it still runs."""
    port = await free_port()
    with (directory / "output").open("ab") as output:
        process = await trio.lowlevel.open_process(
            [*PROGRAM, "serve", *arguments, "--monitor-port", str(port)],
            stdin=-3,
            stdout=output,
            stderr=output,
            env={**os.environ, **environ},
        )
    try:
        yield process, port
    finally:
        if process.returncode is None:
            process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()


async def get(port: int, path: str) -> tuple[int, str]:
    with trio.fail_after(GENEROUS):
        while True:
            try:
                stream = await trio.open_tcp_stream("127.0.0.1", port)
                break
            except OSError:
                await trio.sleep(0.05)
        async with stream:
            await stream.send_all(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            data = b"".join([chunk async for chunk in stream])
    head, _, body = data.partition(b"\r\n\r\n")
    return int(head.split()[1]), body.decode()


async def ready(port: int) -> None:
    with trio.fail_after(GENEROUS):
        while (await get(port, "/readyz"))[0] != 200:
            await trio.sleep(0.05)
