"""Fixtures of the bus: the same tests run on the one in memory and on a real NATS server."""

from collections.abc import AsyncIterator

import pytest

from provisioner.simulator.embedded import NatsServer, nats_server


@pytest.fixture
async def nats() -> AsyncIterator[NatsServer]:
    """A plain NATS server."""
    async with nats_server() as server:
        yield server


@pytest.fixture
async def nats_jetstream() -> AsyncIterator[NatsServer]:
    """A NATS server with JetStream."""
    async with nats_server(jetstream=True) as server:
        yield server
