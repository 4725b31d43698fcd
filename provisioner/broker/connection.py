"""The bus on a Choria broker, from the operator's two files."""

import os
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager

from provisioner.broker.login import BrokerLogin
from provisioner.broker.servers import resolver
from provisioner.bus.nats import NatsBus, open_nats
from provisioner.choria.settings import ChoriaSettings
from provisioner.config import Config


def open_broker(
    config: Config, settings: ChoriaSettings, *, environ: Mapping[str, str] = os.environ
) -> AbstractAsyncContextManager[NatsBus]:
    """Opens the bus of a provisioner: at once, connected as soon as a broker takes it. As ``open_nats``.

    Args:
        config: the provisioner's YAML.
        settings: choria.cfg.
        environ: the environment.

    Raises:
        ConfigError: there is a token, and it can't be read.
    """
    return open_nats(resolver(settings), BrokerLogin(config, settings, environ=environ).options())
