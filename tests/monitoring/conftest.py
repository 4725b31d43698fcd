"""What is on the real pages of the three programs."""

import pytest
from prometheus_client import CollectorRegistry

from provisioner.bus.memory import MemoryBroker
from provisioner.grants import metrics as grants
from provisioner.grants.report import Report
from provisioner.metrics import Metrics, exposition, process_registry
from provisioner.registry.serve import Service
from tests.monitoring.pages import names, parsed


@pytest.fixture(scope="session")
def every_name() -> set[str]:
    """The name of each sample, as Prometheus stores it."""
    mesh = CollectorRegistry()
    Service(MemoryBroker().connect(), mesh)
    postgres = grants.Metrics(CollectorRegistry(), "database")
    report = Report("database")
    postgres.told(report)
    registries = [Metrics(process_registry(), "testing").registry, mesh, postgres.registry]
    return {name for registry in registries for name in names(parsed(exposition(registry)))}
