"""``choria-provisioner run``: the daemon."""

import argparse
import logging
from functools import partial
from pathlib import Path

import trio

from provisioner.cli.choria_files import load_choria_settings
from provisioner.cli.daemon import run_daemon
from provisioner.cli.logs import Logs
from provisioner.cli.pidfile import pid_file
from provisioner.cli.sdnotify import Notifier
from provisioner.config import load_config
from provisioner.errors import EXIT_OK

log = logging.getLogger(__name__)


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of the reference (seed 3)."""
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="the provisioner's YAML file")
    parser.add_argument(
        "--choria-config",
        type=Path,
        metavar="FILE",
        help="the Choria client configuration (default: the first that exists of ~/.choriarc, ~/.mcollective, "
        "/etc/choria/client.conf, /usr/local/etc/choria/client.conf, /etc/puppetlabs/mcollective/client.cfg)",
    )
    parser.add_argument("--pid", type=Path, metavar="FILE", help="write the process id there; removed at the end")


def main(arguments: argparse.Namespace) -> int:
    """Runs until told to stop.

    Raises:
        ConfigError: a file can't be used. The YAML is checked whole before choria.cfg is looked at, and both before
            anything is opened or written.
    """
    config = load_config(arguments.config)
    settings = load_choria_settings(arguments.choria_config)
    logs = Logs(
        "provisioner",
        "debug" if arguments.debug else config.loglevel,
        config.logfile,
        secrets=[config.token, config.broker_provisioning_password, settings.nats_pass],
        config_file=str(config.path),
    )
    with logs, pid_file(arguments.pid):
        for warning in config.warnings:
            log.warning("%s", warning)
        trio.run(partial(run_daemon, config, settings, logs, Notifier.from_environment()))
    return EXIT_OK
