"""The mesh on one machine: a server with accounts, the service, three nodes, questions, and what a node may not do.

Run it with ``make demo-mesh``. It is also an example of the two things that a program on the mesh uses: ``NodeClient``
to keep its node's keys, ``ask`` to ask the service. Exit code 1 when anything is not as it should be.
"""

import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import trio
from prometheus_client import CollectorRegistry

from provisioner.bus.keyvalue import KeyValue
from provisioner.bus.login import Credentials
from provisioner.bus.nats import NatsBus, Options, open_nats
from provisioner.errors import BusError, PermissionDenied, RegistryError
from provisioner.registry.client import NodeClient, Page, ask
from provisioner.registry.keys import SHAPES
from provisioner.registry.serve import Service
from provisioner.registry.table import Bucket
from provisioner.secret import Secret
from provisioner.simulator.embedded import NatsServer, nats_server

ACCOUNTS = Path(__file__).with_name("mesh-accounts.conf")
NODES = ("n1", "n2", "n3")

problems: list[str] = []


def title(text: str) -> None:
    print(f"\n-- {text}")


def check(right: object, text: str) -> None:
    print(f"   {'ok ' if right else 'NOT'} {text}")
    if not right:
        problems.append(text)


async def refused(attempt: Awaitable[object], text: str) -> None:
    try:
        await attempt
    except PermissionDenied as error:
        check(True, f"{text}: {error}")
    else:
        check(False, text)


@asynccontextmanager
async def account(server: NatsServer, user: str, password: str) -> AsyncIterator[NatsBus]:
    async def servers() -> Sequence[str]:
        return [server.url]

    options = Options(name=user, credentials=lambda: Credentials(user=user, password=Secret(password)))
    async with open_nats(servers, options) as bus:
        with trio.fail_after(10):
            await bus.wait_connected()
        yield bus


async def show(server: NatsServer, directory: Path, *question: str) -> None:
    """The same question as an operator asks it, in a terminal."""
    password = directory / "password"
    password.write_text("n1-secret")
    connection = ["--servers", server.url, "--user", "n1-client", "--password-file", str(password)]
    print(f"   $ mesh-provisioner ask {' '.join(question)}", flush=True)
    command = [sys.executable, "-m", "provisioner.cli.mesh", "ask", *question, *connection]
    check((await trio.run_process(command, check=False)).returncode == 0, "answered")


async def answered(bus: NatsBus, what: str, items: int) -> Page:
    """Asks until there is an answer with so many items; ``unavailable`` is no answer, and never an old one."""
    with trio.fail_after(20):
        while True:
            try:
                page = await ask(bus, what)
                if len(page.items) == items:
                    return page
            except (BusError, RegistryError):
                pass
            await trio.sleep(0.1)


async def demo(server: NatsServer, directory: Path, controller: NatsBus, buses: dict[str, NatsBus]) -> None:
    nodes = {name: NodeClient(bus, name) for name, bus in buses.items()}

    title("The registry: written by the service, which alone may write it")
    found = await answered(buses["n1"], "registry", 13)
    check(len(found.items) == 13, f"{len(found.items)} kinds of placeholder have an answer")
    await show(server, directory)

    title("Three nodes say what they need, what is applied, and what they contribute")
    for number, node in enumerate(nodes.values()):
        check(await node.put_need("app", "bound", "db:main", {"provider": "postgres"}), f"{node.node} needs a database")
        check(await node.put_applied("app", {"version": f"1.{number}"}), f"{node.node} has applied app 1.{number}")
        check(await node.put_item("shell:zsh:normal", "zshmod", {"order": 10 * number}), f"{node.node} contributes")
    check(not await nodes["n1"].put_applied("app", {"version": "1.0"}), "saying it again writes nothing")

    title("Who is asked, and for what")
    await show(server, directory, "needs", "--module", "app")
    await show(server, directory, "collect", "--collection", "shell:zsh:normal", "--node", "n2")
    kind = await nodes["n2"].resolve("shell")
    place = (
        kind
        and isinstance(kind.source, Bucket)
        and kind.source.locate(node="n2", name="zsh:normal", contributor="zshmod")
    )
    check(place, f"a client finds the placeholder shell zsh:normal in {place}")

    title("What a node may not do: the server refuses it, whatever the program")
    key = "n2.app.bound.db=3Amain"
    await refused(KeyValue(buses["n1"], SHAPES["needs"].bucket).put(key, b"{}"), "n1 writes a need of n2")
    await refused(KeyValue(buses["n1"], SHAPES["needs"].bucket).get(key), "n1 reads a need of n2 by its key")
    await refused(KeyValue(buses["n1"], SHAPES["registry"].bucket).put("port", b"{}"), "n1 writes the registry")
    await refused(NodeClient(buses["n3"], "n1").put_applied("app", {}), "n3 says what is applied on n1")

    title("A key out of its bucket's shape is told, never dropped")
    await KeyValue(buses["n3"], SHAPES["collect"].bucket).put("n3.lost", b"1")
    bad: list[dict[str, Any]] = (await ask(buses["n1"], "collect", node="n2")).bad_keys
    check([row["key"] for row in bad] == ["n3.lost"], f"even to a question about n2: {bad}")

    title("The bucket is lost and made anew: never an old answer")
    needs = KeyValue(controller, SHAPES["needs"].bucket)
    await needs.api(f"STREAM.DELETE.{needs.stream}")
    await needs.create_bucket()
    check(not (await answered(buses["n1"], "needs", 0)).items, "the next answer has no needs")


async def main() -> int:
    logging.basicConfig(level=logging.CRITICAL)
    async with nats_server(ACCOUNTS.read_text(), jetstream=True) as server, AsyncExitStack() as stack:
        controller = await stack.enter_async_context(account(server, "controller", "controller-secret"))
        for shape in SHAPES.values():
            await KeyValue(controller, shape.bucket).create_bucket()
        buses = {n: await stack.enter_async_context(account(server, f"{n}-client", f"{n}-secret")) for n in NODES}
        async with account(server, "mesh-provisioner", "service-secret") as bus, trio.open_nursery() as nursery:
            nursery.start_soon(Service(bus, CollectorRegistry()).run)
            await demo(server, server.directory, controller, buses)
            nursery.cancel_scope.cancel()
    print(f"\n{'All as it should be.' if not problems else f'NOT as it should be: {problems}'}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(trio.run(main))
