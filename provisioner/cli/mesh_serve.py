"""``mesh-provisioner serve``: the daemon."""

import argparse
import logging
from contextlib import AbstractAsyncContextManager
from functools import partial

import trio

from provisioner.bus.nats import NatsBus
from provisioner.cli import mesh_connection
from provisioner.cli.logs import Logs
from provisioner.cli.sdnotify import Notifier
from provisioner.cli.signals import handle_signals
from provisioner.errors import EXIT_OK
from provisioner.metrics import process_registry
from provisioner.registry.serve import Service
from provisioner.version import __version__

log = logging.getLogger(__name__)


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    mesh_connection.configure(parser)
    parser.add_argument(
        "--create-buckets",
        action="store_true",
        help="make the four buckets where they are missing: first set-up, with an account that may",
    )
    parser.add_argument(
        "--monitor-port", type=_port, metavar="N", help="serve /metrics, /healthz, /readyz and /status on this port"
    )
    parser.add_argument("--logfile", default="", metavar="FILE", help="log JSON lines there instead of to the terminal")


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= 65535:
        raise ValueError(text)
    return port


def main(arguments: argparse.Namespace) -> int:
    """Serves until told to stop."""
    notifier = Notifier.from_environment()
    bus = mesh_connection.open_bus(arguments, "mesh-provisioner")
    with Logs("mesh-provisioner", "info", arguments.logfile, debug=arguments.debug) as logs:
        log.info("mesh-provisioner %s starting with %s", __version__, ", ".join(arguments.servers))
        trio.run(_serve, arguments, bus, notifier, logs)
        log.info("mesh-provisioner stopped")
    return EXIT_OK


async def _serve(
    arguments: argparse.Namespace, bus: AbstractAsyncContextManager[NatsBus], notifier: Notifier, logs: Logs
) -> None:
    async with bus as connection, trio.open_nursery() as nursery:

        def stop() -> None:
            notifier.stopping()
            nursery.cancel_scope.cancel()

        await nursery.start(partial(handle_signals, stop=stop, abort=stop, hangup=logs.reopen))
        if notifier.watchdog_interval:
            nursery.start_soon(_watchdog, notifier, notifier.watchdog_interval)
        service = Service(connection, process_registry())
        if arguments.monitor_port is not None:
            await nursery.start(service.monitor, arguments.monitor_port)
        # Ready to systemd means at work, also while the server is away: /readyz tells whether there is an answer.
        notifier.ready()
        await service.run(create_buckets=arguments.create_buckets)


async def _watchdog(notifier: Notifier, interval: float) -> None:
    while True:
        notifier.alive()
        await trio.sleep(interval)
