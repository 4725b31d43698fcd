"""The broker for one-shot commands: there within a time, or told why not."""

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from provisioner.broker.connection import open_broker
from provisioner.bus.interface import Bus
from provisioner.choria.settings import ChoriaSettings
from provisioner.config import Config
from provisioner.errors import ConnectionLost

WAIT = 10.0
"""Seconds for a first connection; a daemon waits for ever, an operator doesn't."""


def add_wait(parser: argparse.ArgumentParser) -> None:
    """Adds the flag ``--wait``."""
    parser.add_argument(
        "--wait",
        type=_seconds,
        default=WAIT,
        metavar="SECONDS",
        help=f"how long to wait for a broker (default {WAIT:g})",
    )


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 3600:
        raise argparse.ArgumentTypeError("must be a number of seconds, up to 3600")
    return seconds


@asynccontextmanager
async def connected(config: Config, settings: ChoriaSettings, wait: float = WAIT) -> AsyncIterator[Bus]:
    """A connection as the daemon would have it, made within ``wait`` seconds.

    Raises:
        ConfigError: a file of our credential can't be used.
        ConnectionLost: no broker took us in time; says what the last one answered.
    """
    async with open_broker(config, settings) as bus:
        with trio.move_on_after(wait):
            await bus.wait_connected()
        if not bus.connected:
            raise ConnectionLost(f"no connection to a broker within {wait:g} s: {bus.last_error}")
        yield bus
