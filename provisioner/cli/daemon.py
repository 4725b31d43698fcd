"""The daemon's outermost nursery: the bus, the service, signals and the service manager."""

import gc
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

import trio

from provisioner import status
from provisioner.audit import AuditTrail
from provisioner.broker.connection import open_broker
from provisioner.bus.interface import Bus
from provisioner.choria.settings import ChoriaSettings
from provisioner.cli.helper_mode import helper_runner
from provisioner.cli.logs import Logs
from provisioner.cli.sdnotify import Notifier
from provisioner.cli.signals import handle_signals
from provisioner.config import Config, load_config
from provisioner.connect import wire_for
from provisioner.errors import ConfigError
from provisioner.leader.campaign import Campaign
from provisioner.leader.lead import Lead, Unopposed
from provisioner.leader.sharing import Sharing
from provisioner.metrics import Metrics, process_registry
from provisioner.service import Service

log = logging.getLogger(__name__)

STATUS_EVERY = 5.0
"""Seconds between looks at what systemd is told."""
COLLECT_EVERY = 20_000
"""Container objects made, less those freed, between two garbage collections. A cycle makes many that live as long as it
does: looking through them each 700, Python's default, takes 4 % of our CPU."""


async def run_daemon(
    config: Config,
    settings: ChoriaSettings,
    logs: Logs,
    notifier: Notifier,
    read: Callable[[Path], Config] = load_config,
) -> None:
    """Serves until SIGTERM or SIGINT; ``read`` reads the configuration anew on SIGHUP.

    Raises:
        ConfigError: something can't be used; found before anything is opened where that is possible.
    """
    gc.set_threshold(COLLECT_EVERY)
    wire = wire_for(config, settings)
    audit = None
    if config.audit_log is not None:
        audit = AuditTrail(
            config.audit_log, provisioner=settings.identity, site=config.site, config_file=str(config.path)
        )
    metrics = Metrics(process_registry(), config.site)
    broker = open_broker(config, settings)

    async with trio.open_nursery() as process:
        service_scope = trio.CancelScope()

        def stop() -> None:
            log.info("Stopping")
            notifier.stopping()
            service_scope.cancel()

        service: Service | None = None
        missed = False

        def hangup() -> None:
            nonlocal missed
            logs.reopen()
            if audit is not None:
                audit.reopen()
            if service is None:
                missed = True
            else:
                _reload(service, logs, notifier, read)

        await process.start(partial(handle_signals, stop=stop, abort=process.cancel_scope.cancel, hangup=hangup))
        # The bus outlives the service: a leader that is told to stop still has to say so.
        async with helper_runner(config) as run_helper, broker as bus:
            with service_scope:
                async with trio.open_nursery() as nursery:
                    starting = Service(
                        config,
                        identity=settings.identity,
                        bus=bus,
                        wire=wire,
                        ttl=settings.ttl,
                        run_helper=run_helper,
                        metrics=metrics,
                        lead=_lead(config, bus, settings.identity, metrics),
                        on_end=audit or (lambda ended: None),
                    )
                    service = await nursery.start(starting.run)
                    notifier.ready()
                    if missed:  # the file may have changed after it was read
                        hangup()
                    nursery.start_soon(_tell, service, notifier)
        process.cancel_scope.cancel()


def _lead(config: Config, bus: Bus, identity: str, metrics: Metrics) -> Lead:
    if config.leader_election:
        return Campaign(bus, identity, create_bucket=config.create_bucket)
    if config.sharing:
        return Sharing(bus, identity, metrics)
    return Unopposed()


def _reload(service: Service, logs: Logs, notifier: Notifier, read: Callable[[Path], Config]) -> None:
    """Takes the configuration file anew, whole or not at all."""
    notifier.reloading()
    try:
        config = read(service.config.path)
        kept = service.reload(config)
    except ConfigError as error:
        for fault in error.faults:
            log.error("The configuration is not reloaded, the old one stays: %s", fault)  # noqa: TRY400
    else:
        logs.set_level(config.loglevel)
        logs.hide(config.token)
        for warning in config.warnings:
            log.warning("%s", warning)
        for key in kept:
            log.warning("%s was changed, which needs a restart; the old value stays", key)
        log.info("Configuration reloaded from %s", config.path)
    notifier.ready()


async def _tell(service: Service, notifier: Notifier) -> None:
    """Keeps the service manager informed: that we live, how we are connected and in what role."""
    told = ""
    while True:
        text = status.sentence(service)
        if text != told:
            notifier.status(text)
            told = text
        notifier.alive()
        await trio.sleep(min(STATUS_EVERY, notifier.watchdog_interval or STATUS_EVERY))
