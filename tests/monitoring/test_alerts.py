"""Each alert: its fault is made for real, /metrics is scraped before and during it, and Prometheus's own tool says that
it fires, and that nothing does while all is well.
"""

import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import yaml
from prometheus_client import CollectorRegistry

from provisioner.bus.nats import Options, open_nats
from provisioner.choria import subjects
from provisioner.metrics import Metrics, exposition
from provisioner.simulator.embedded import NatsServer
from provisioner.simulator.faults import Fault, Kind
from provisioner.simulator.fleet import make_servers, open_fleet
from tests.integration.daemon import CONFIGURATION, Daemon, running_daemon, write_helper
from tests.integration.mesh import connection, get, mesh, ready, serving
from tests.integration.postgres_fixtures import lab, postgres
from tests.integration.postgres_lab import Lab, consumer
from tests.monitoring.pages import ALERTS, CONTRIB, Page, firing, metrics_of, parsed

__all__ = ["lab", "postgres"]

TOOL = pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool (Debian: apt-get install prometheus)")
REAL = [pytest.mark.slow, pytest.mark.timeout(180), TOOL]
RULES = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
SEEN: set[str] = set()


async def page(daemon: Daemon) -> Page:
    return parsed((await daemon.get("/metrics"))[1])


async def scraped(daemon: Daemon, wanted: str, least: float = 1, seconds: float = 90) -> Page:
    """The page once a series is at least so much."""
    with trio.fail_after(seconds):
        while (found := await page(daemon)).values[wanted] < least:
            await trio.sleep(0.1)
    return found


SITE = 'site="testing"'


@asynccontextmanager
async def fleet(server: NatsServer, number: int = 3, fault: Kind | None = None) -> AsyncIterator[None]:
    async def resolve() -> list[str]:
        return [server.url]

    faults = [(Fault(fault), number)] if fault else []
    made = make_servers(number, version=1, token="s3cret", now=time.time(), faults=faults)
    async with open_nats(resolve, Options(name="fleet")) as bus:
        await bus.wait_connected()
        async with open_fleet(bus, made.servers) as running:
            await running.announce()
            yield


def fires(tmp_path: Path, healthy: Page, faulty: Page, job: str = "choria-provisioner", **more: bool) -> set[str]:
    found = firing(tmp_path, healthy, faulty, job, **more)
    SEEN.update(found)
    return found


# --- choria-provisioner ----------------------------------------------------------------------------------------------


class TestChoria:
    pytestmark = REAL

    async def test_disconnected(self, nats: NatsServer, tmp_path: Path) -> None:
        async with running_daemon(tmp_path, nats.port) as daemon:
            await daemon.until(lambda status: status["connected"])
            healthy = await page(daemon)
            await nats.kill()
            await daemon.until(lambda status: not status["connected"])
            assert "ChoriaProvisionerDisconnected" in fires(tmp_path, healthy, await page(daemon))

    async def test_down_and_nobody_acts(self, nats: NatsServer, nats_jetstream: NatsServer, tmp_path: Path) -> None:
        async with running_daemon(tmp_path / "a", nats.port) as daemon:
            await daemon.until(lambda status: status["connected"])
            healthy = await page(daemon)
        assert fires(tmp_path, healthy, healthy, up=False) == {"ChoriaProvisionerDown"}
        # The election's bucket isn't there.
        async with running_daemon(tmp_path / "b", nats_jetstream.port, leader_election=True) as daemon:
            await daemon.until(lambda status: status["connected"])
            assert fires(tmp_path, healthy, await page(daemon)) == {"ChoriaProvisionerNobodyActs"}

    async def test_the_helper_fails(self, nats: NatsServer, tmp_path: Path) -> None:
        write_helper(tmp_path, "#!/bin/sh\nexit 1\n")
        async with running_daemon(tmp_path, nats.port) as daemon:
            await daemon.until(lambda status: status["connected"])
            healthy = await page(daemon)
            async with fleet(nats):
                faulty = await scraped(daemon, f"choria_provisioner_helper_errors{{{SITE}}}")
        assert fires(tmp_path, healthy, faulty) == {"ChoriaProvisionerHelperFails", "ChoriaProvisionerNothingSucceeds"}

    async def test_the_helper_is_slow_and_servers_wait(self, nats: NatsServer, tmp_path: Path) -> None:
        write_helper(tmp_path, f"#!/bin/sh\ncat >/dev/null\nsleep 6\necho '{CONFIGURATION}'\n")
        async with running_daemon(tmp_path, nats.port, workers=1) as daemon:
            await daemon.until(lambda status: status["connected"])
            healthy = await page(daemon)
            async with fleet(nats, 1100):
                await scraped(daemon, f"choria_provisioner_waiting_nodes{{{SITE}}}", 1001)
                faulty = await scraped(daemon, f"choria_provisioner_provisioned{{{SITE}}}")
        assert fires(tmp_path, healthy, faulty) == {"ChoriaProvisionerHelperSlow", "ChoriaProvisionerServersWait"}

    async def test_servers_do_not_answer(self, nats: NatsServer, tmp_path: Path) -> None:
        async with running_daemon(tmp_path, nats.port, workers=20) as daemon:
            await daemon.until(lambda status: status["connected"])
            healthy = await page(daemon)
            async with fleet(nats, 15, Kind.REFUSING):
                faulty = await scraped(daemon, f"choria_provisioner_provision_errors{{{SITE}}}", 12)
        assert fires(tmp_path, healthy, faulty) == {
            "ChoriaProvisionerServersDontAnswer",
            "ChoriaProvisionerNothingSucceeds",
        }

    async def test_sightings_are_refused(self, nats: NatsServer, tmp_path: Path) -> None:
        async def resolve() -> list[str]:
            return [nats.url]

        async with running_daemon(tmp_path, nats.port) as daemon:
            await daemon.until(lambda status: status["connected"])
            healthy = await page(daemon)
            async with open_nats(resolve, Options(name="stranger")) as bus:
                await bus.wait_connected()
                bus.publish(subjects.event("startup", "provision_mode_server"), b"{}")
                faulty = await scraped(daemon, f'choria_provisioner_refused_sightings{{{SITE},reason="bad_event"}}')
        assert fires(tmp_path, healthy, faulty) == {"ChoriaProvisionerSightingsRefused"}


@pytest.mark.slow  # beside those whose sightings the last test adds up
@TOOL
def test_bugs_and_discoveries_are_counted(tmp_path: Path) -> None:
    # A bug can't be made on purpose: these two faults are counted by hand, through the code that counts real ones.
    metrics = Metrics(CollectorRegistry(), "testing")
    metrics.paused.set(0)
    metrics.connected.set(1)
    healthy = parsed(exposition(metrics.registry))
    metrics.ended("internal_error")
    metrics.provisioned.inc()
    assert fires(tmp_path, healthy, parsed(exposition(metrics.registry))) == {"ChoriaProvisionerBug"}
    healthy = parsed(exposition(metrics.registry))
    metrics.discovery_errors.inc()
    assert fires(tmp_path, healthy, parsed(exposition(metrics.registry))) == {"ChoriaProvisionerDiscoveryFails"}


# --- mesh-provisioner ------------------------------------------------------------------------------------------------


class TestMesh:
    pytestmark = REAL

    async def test_down(self, tmp_path: Path) -> None:
        async with (
            mesh(tmp_path) as made,
            serving(tmp_path, *connection(made, tmp_path, "mesh-provisioner")) as (_, at),
        ):
            await ready(at)
            healthy = parsed((await get(at, "/metrics"))[1])
        assert fires(tmp_path, healthy, healthy, "mesh-provisioner", up=False) == {
            "MeshProvisionerDown",
            "MeshProvisionerNotReconciled",
        }

    async def test_each_fault(self, tmp_path: Path) -> None:
        async def until(series: str, value: float) -> Page:
            with trio.fail_after(60):
                while (found := parsed((await get(at, "/metrics"))[1])).values[series] != value:
                    await trio.sleep(0.05)
            return found

        def seen(faulty: Page) -> set[str]:
            return fires(tmp_path, healthy, faulty, "mesh-provisioner") - {"MeshProvisionerNotReconciled"}

        async with (
            mesh(tmp_path) as made,
            serving(tmp_path, *connection(made, tmp_path, "mesh-provisioner")) as (_, at),
        ):
            await ready(at)
            healthy = parsed((await get(at, "/metrics"))[1])
            bucket = 'bucket="mesh-provisioner_collect"'
            await made.store("collect", "n1.app", b"1")
            bad = await until(f"mesh_provisioner_bucket_bad_keys{{{bucket}}}", 1)
            assert seen(bad) == {"MeshProvisionerBadKeys"}
            await made.delete_bucket("collect")
            away = await until(f"mesh_provisioner_bucket_available{{{bucket}}}", 0)
            assert "MeshProvisionerBucketAway" in seen(away)
            await made.server.kill()
            assert "MeshProvisionerDisconnected" in seen(await until("mesh_provisioner_connected{}", 0))
        # No question can be made to end in a bug: this one is counted by hand.
        bug = Page({**healthy.values, 'mesh_provisioner_requests{what="needs",outcome="internal"}': 1}, healthy.kinds)
        assert set(bug.values) == set(healthy.values)
        assert seen(bug) == {"MeshProvisionerBug"}


# --- postgres-provisioner --------------------------------------------------------------------------------------------


@TOOL
@pytest.mark.timeout(180)
def test_postgres(lab: Lab, tmp_path: Path) -> None:
    def run(code: int, *flags: str) -> Page:
        done = lab.command("--textfile", str(tmp_path / "postgres.prom"), *flags)
        assert done.returncode == code, done.stderr
        return parsed((tmp_path / "postgres.prom").read_text())

    def seen(faulty: Page) -> set[str]:
        return fires(tmp_path, healthy, faulty, "postgres-provisioner")

    secret = str(lab.secret("n1", "wiki", "a-password"))
    lab.write(consumer("n1", "wiki", secret))
    healthy = run(0)
    # The timer is off: the file stays as it is.
    assert seen(healthy) == {"PostgresProvisionerStale"}
    lab.write(consumer("n1", "wiki", secret), consumer("n1", "mail", str(lab.grants / "absent.secret")))
    assert seen(run(1)) == {"PostgresProvisionerFails", "PostgresProvisionerConsumersWait"}
    lab.write()
    assert seen(run(1, "--max-remove", "0")) == {"PostgresProvisionerFails", "PostgresProvisionerRemovalsWithheld"}


# --- all of them -----------------------------------------------------------------------------------------------------


def test_they_ask_for_metrics_that_there_are(every_name: set[str]) -> None:
    asked = {name for rule in RULES for name in metrics_of(rule["expr"])}
    assert asked <= every_name


def test_the_page_tells_of_each() -> None:
    page = (CONTRIB.parent / "docs" / "metrics.md").read_text()
    assert [rule["alert"] for rule in RULES if f"`{rule['alert']}`" not in page] == []


@pytest.mark.slow
@TOOL
def test_each_has_fired() -> None:
    """Stands last: what the tests above saw."""
    if not SEEN:
        pytest.skip("goes with the tests above")
    assert {rule["alert"] for rule in RULES} - SEEN == set()
