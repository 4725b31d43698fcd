"""Three daemons share a fleet; one is killed in the middle and another joins."""

import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio

from provisioner.bus.nats import Options, open_nats
from provisioner.simulator.embedded import NatsServer
from provisioner.simulator.fleet import make_servers, open_fleet
from provisioner.simulator.site import Site
from tests.integration.daemon import Daemon, running_daemon

SERVERS = 3000


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_three_share_three_thousand_servers(nats: NatsServer, tmp_path: Path) -> None:
    """Each server is configured once, or refused by its lock and done by another; none is forgotten."""

    async def resolve() -> list[str]:
        return [nats.url]

    # The lock of one that was killed outlives it: two minutes on a real server, shorter here.
    site = Site(token="", jwt="", lock_seconds=10)
    made = make_servers(SERVERS, version=1, token="s3cret", now=time.time(), site=site)
    async with open_nats(resolve, Options(name="fleet")) as bus, AsyncExitStack() as stack:
        await bus.wait_connected()

        async def join(name: str) -> Daemon:
            choria = f"identity = {name}.example.net\n"
            return await stack.enter_async_context(
                running_daemon(tmp_path / name, nats.port, choria=choria, sharing=True)
            )

        first, second, third = [await join(name) for name in ("a", "b", "c")]
        for one in (first, second, third):
            await one.until(lambda status: status["leader"] and status["election"].count("example.net") == 3)
        fleet = await stack.enter_async_context(open_fleet(bus, made.servers))
        await fleet.announce()

        def restarted() -> int:
            return sum(server.node.received.done["restart"] for server in fleet.servers.values())

        with trio.fail_after(240):
            await fleet.wait_until(lambda: restarted() >= SERVERS // 3)
            third.process.kill()
            fourth = await join("d")
            await fleet.wait_until(lambda: restarted() >= SERVERS)
        received = [server.node.received for server in fleet.servers.values()]
        assert {one.done["restart"] for one in received} == {1}
        # The one that was killed may have configured a few whose restart another then did: never more than its workers.
        twice = [one for one in received if len(one.configurations) > 1]
        assert len(twice) <= 8
        shares = [(await one.status())["outcomes"].get("provisioned", 0) for one in (first, second, fourth)]
        assert all(share > 0 for share in shares), shares
        assert (await first.metrics())["members"] == 3
        for one in (first, second, fourth):
            assert await one.ends() == 0
