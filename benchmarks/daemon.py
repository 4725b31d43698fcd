"""The provisioner of a benchmark: the daemon's parts, with transport, protocol and helper to be chosen freely.

    python -m benchmarks.daemon YAML CHORIA_CFG [--no-tls] [--unsigned] [--in-process] [--interval SECONDS]

``choria-provisioner run`` is the same without the flags: it speaks version 2 over TLS only, signs whenever there is
TLS, has no Python function in it, and looks for servers once a minute at most.
"""

import argparse
import gc
import signal
from pathlib import Path

import trio
from attrs import evolve

from benchmarks.site import ANSWER
from provisioner.broker.login import BrokerLogin
from provisioner.bus.nats import open_nats
from provisioner.choria.settings import ChoriaSettings
from provisioner.choria.v1 import V1
from provisioner.cli.choria_files import load_choria_settings
from provisioner.cli.daemon import COLLECT_EVERY
from provisioner.cli.helper_mode import helper_runner
from provisioner.cli.logs import Logs
from provisioner.config import Config, load_config
from provisioner.connect import wire_for
from provisioner.helper.function import in_process
from provisioner.metrics import Metrics, process_registry
from provisioner.service import serve


async def main(arguments: argparse.Namespace, config: Config, settings: ChoriaSettings) -> None:
    gc.set_threshold(COLLECT_EVERY)

    async def resolve() -> list[str]:
        return list(settings.hosts)

    options = BrokerLogin(config, settings).options()
    if arguments.no_tls:
        options = evolve(options, tls=None)
    wire = V1("choria=unsigned") if arguments.unsigned else wire_for(config, settings)
    async with helper_runner(config) as program, open_nats(resolve, options) as bus, trio.open_nursery() as nursery:
        nursery.start_soon(stop, nursery.cancel_scope)
        await serve(
            config,
            identity=settings.identity,
            bus=bus,
            wire=wire,
            run_helper=in_process(lambda server: ANSWER) if arguments.in_process else program,
            metrics=Metrics(process_registry(), config.site),
        )


async def stop(scope: trio.CancelScope) -> None:
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async for _ in signals:
            scope.cancel()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("config", type=Path)
    parser.add_argument("choria", type=Path)
    parser.add_argument("--no-tls", action="store_true")
    parser.add_argument("--unsigned", action="store_true")
    parser.add_argument("--in-process", action="store_true")
    parser.add_argument("--interval", type=float)
    given = parser.parse_args()
    its_config = load_config(given.config)
    if given.interval:
        its_config = evolve(its_config, interval=given.interval)
    with Logs("provisioner", its_config.loglevel, its_config.logfile):
        trio.run(main, given, its_config, load_choria_settings(given.choria))
