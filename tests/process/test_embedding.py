"""The documentation's program that embeds the provisioner, as it stands; and two services in one process."""

import subprocess
import sys
from pathlib import Path

import pytest
import trio
import trio.testing
from attrs import evolve
from prometheus_client import CollectorRegistry

import provisioner
from provisioner.bus.memory import MemoryBroker
from provisioner.choria.v1 import V1
from provisioner.metrics import Metrics
from provisioner.service import Service
from provisioner.testing import ScriptedHelper, ScriptedNode
from tests.flow.conftest import CONFIG

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "embedded.py"


def test_the_example_of_the_documentation() -> None:
    done = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "n1.example.net provisioned\nCounter({'provisioned': 1})\n"
    assert done.stderr == ""


def test_the_public_names_are_there() -> None:
    for name in provisioner.__all__:
        assert getattr(provisioner, name) is not None
    with pytest.raises(AttributeError, match="nothing"):
        _ = provisioner.nothing


async def test_two_services_in_one_process() -> None:
    """Each with its own fleet, registry and site; one is cancelled, the other goes on."""
    services: list[tuple[Service, CollectorRegistry, trio.CancelScope, MemoryBroker]] = []

    async def run(service: Service, scope: trio.CancelScope) -> None:
        with scope:
            await service.run()

    async with trio.open_nursery() as nursery:
        for site in ("one", "two"):
            registry, broker = CollectorRegistry(), MemoryBroker()
            service = Service(
                evolve(CONFIG, site=site),
                identity=f"prov.{site}.net",
                bus=broker.connect(),
                wire=V1(f"choria=prov.{site}.net"),
                run_helper=ScriptedHelper(),
                metrics=Metrics(registry, site),
            )
            scope = trio.CancelScope()
            services.append((service, registry, scope, broker))
            nursery.start_soon(run, service, scope)
        with trio.fail_after(30):
            for service, registry, scope, broker in services:
                site = service.config.site
                async with ScriptedNode(f"n1.{site}.net").on(broker.connect()) as node:
                    await trio.testing.wait_all_tasks_blocked()
                    node.start()
                    await node.called("restart")
                    await trio.testing.wait_all_tasks_blocked()
                assert registry.get_sample_value("choria_provisioner_provisioned_total", {"site": site}) == 1
                assert service.history.totals == {"provisioned": 1}
                scope.cancel()
