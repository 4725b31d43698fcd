"""``choria-provisioner run``: the daemon."""

import argparse
import logging
from functools import partial
from pathlib import Path

import trio
from attrs import evolve

from provisioner.cli.choria_files import load_choria_settings
from provisioner.cli.daemon import run_daemon
from provisioner.cli.logs import Logs
from provisioner.cli.pidfile import pid_file
from provisioner.cli.sdnotify import Notifier
from provisioner.config import Config, load_config
from provisioner.errors import EXIT_OK, ConfigError, Fault

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
    parser.add_argument("--record", type=Path, metavar="DIR", help="as the key record_inputs, which it overrides")


def main(arguments: argparse.Namespace) -> int:
    """Runs until told to stop.

    Raises:
        ConfigError: a file can't be used. The YAML is checked whole before choria.cfg is looked at, and both before
            anything is opened or written.
    """

    def read(path: Path) -> Config:
        config = load_config(path)
        return evolve(config, record_inputs=arguments.record) if arguments.record else config

    if arguments.record and not arguments.record.is_dir():
        raise ConfigError([Fault("--record", "", "must be a directory that exists", str(arguments.record))])
    config = read(arguments.config)
    settings = load_choria_settings(arguments.choria_config)
    logs = Logs(
        "provisioner",
        config.loglevel,
        config.logfile,
        debug=arguments.debug,
        secrets=[config.token, config.broker_provisioning_password, settings.nats_pass],
        config_file=str(config.path),
    )
    with logs, pid_file(arguments.pid):
        for warning in config.warnings:
            log.warning("%s", warning)
        trio.run(partial(run_daemon, config, settings, logs, Notifier.from_environment(), read))
    return EXIT_OK
