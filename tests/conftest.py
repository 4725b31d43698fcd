"""What all tests share: how properties are tested, and NATS servers to test against."""

import signal
from collections.abc import AsyncIterator

import pytest
from hypothesis import settings

from provisioner.simulator.embedded import NatsServer, nats_server

# A shared, busy machine: a slow example is no failure. The same examples each run: a red test stays red.
settings.register_profile("project", deadline=None, derandomize=True, database=None)
settings.load_profile("project")

# A shell starts its background jobs with SIGINT ignored, nohup does so with SIGHUP, and a child would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, signal.SIG_DFL)


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
