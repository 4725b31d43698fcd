"""The broker for one-shot commands: there within a time, or told why not."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from provisioner.bus.interface import Bus
from provisioner.bus.nats import Options, open_nats
from provisioner.choria.settings import ChoriaSettings
from provisioner.config import Config
from provisioner.errors import ConnectionLost

CONNECT_SECONDS = 10.0
"""For a first connection; a daemon waits for ever, an operator doesn't."""


@asynccontextmanager
async def connected(config: Config, settings: ChoriaSettings) -> AsyncIterator[Bus]:  # noqa: ARG001
    """A connection as the daemon would have it.

    Raises:
        ConnectionLost: no broker took us in time; says what the last one answered.
    """

    async def resolve() -> list[str]:
        return list(settings.hosts)

    async with open_nats(resolve, Options(name=f"{settings.identity}.cli")) as bus:
        with trio.move_on_after(CONNECT_SECONDS):
            await bus.wait_connected()
        if not bus.connected:
            tried = ", ".join(settings.hosts)
            raise ConnectionLost(f"no connection to {tried} within {CONNECT_SECONDS:g} s: {bus.last_error}")
        yield bus
