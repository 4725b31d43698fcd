"""Provisions Choria Servers, PostgreSQL logins and a mesh registry: three Trio services in one house.

What embedders use is found here by name; the rooms behind it are described in ``docs/architecture.md``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from provisioner.broker.connection import open_broker as open_broker
    from provisioner.bus.memory import MemoryBroker as MemoryBroker
    from provisioner.bus.nats import open_nats as open_nats
    from provisioner.config import Config as Config
    from provisioner.config import Features as Features
    from provisioner.config import load_config as load_config
    from provisioner.connect import wire_for as wire_for
    from provisioner.errors import ConfigError as ConfigError
    from provisioner.errors import ProvisionerError as ProvisionerError
    from provisioner.helper.function import in_process as in_process
    from provisioner.leader.campaign import Campaign as Campaign
    from provisioner.leader.lead import Unopposed as Unopposed
    from provisioner.leader.sharing import Sharing as Sharing
    from provisioner.metrics import Metrics as Metrics
    from provisioner.secret import Secret as Secret
    from provisioner.service import Service as Service
    from provisioner.service import serve as serve

_ROOMS = {
    "Campaign": "leader.campaign",
    "Config": "config",
    "ConfigError": "errors",
    "Features": "config",
    "MemoryBroker": "bus.memory",
    "Metrics": "metrics",
    "ProvisionerError": "errors",
    "Secret": "secret",
    "Service": "service",
    "Sharing": "leader.sharing",
    "Unopposed": "leader.lead",
    "in_process": "helper.function",
    "load_config": "config",
    "open_broker": "broker.connection",
    "open_nats": "bus.nats",
    "serve": "service",
    "wire_for": "connect",
}

__all__ = sorted(_ROOMS)  # noqa: PLE0605 - the table above is the list


def __getattr__(name: str) -> Any:
    # Imported when asked for: `choria-provisioner --version` needs none of it.
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_ROOMS[name]}"), name)
