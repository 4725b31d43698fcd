"""The Grafana dashboard: each of its queries, asked of a real Prometheus that scrapes a real daemon with a fleet."""

import json
import math
import shutil
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from provisioner.simulator.embedded import NatsServer
from provisioner.simulator.faults import Kind
from tests.integration.daemon import free_port, running_daemon
from tests.monitoring.pages import CONTRIB, metrics_of
from tests.monitoring.test_alerts import fleet

BOARD = json.loads((CONTRIB / "grafana" / "choria-provisioner.json").read_text())
QUERIES = [(panel["title"], target["expr"]) for panel in BOARD["panels"] for target in panel["targets"]]


def test_it_asks_for_metrics_that_there_are(every_name: set[str]) -> None:
    asked = {name for _, query in QUERIES for name in metrics_of(query)}
    assert asked <= every_name
    assert len(asked) > 15


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + i, at["y"] + j) for i in range(at["w"]) for j in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])


@asynccontextmanager
async def prometheus(directory: Path, *targets: int) -> AsyncIterator[int]:
    """One that scrapes each second; its port."""
    port = await free_port()
    (directory / "prometheus.yml").write_text(
        json.dumps(
            {
                "global": {"scrape_interval": "1s"},
                "scrape_configs": [
                    {
                        "job_name": "choria-provisioner",
                        "static_configs": [{"targets": [f"127.0.0.1:{target}" for target in targets]}],
                    }
                ],
            }
        )
    )
    with (directory / "prometheus.log").open("ab") as output:
        process = await trio.lowlevel.open_process(
            ["prometheus", f"--config.file={directory}/prometheus.yml", f"--storage.tsdb.path={directory}/data",
             f"--web.listen-address=127.0.0.1:{port}"],
            stdin=-3, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        yield port
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()


async def asked(port: int, query: str) -> Sequence[float]:
    url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": query})

    def fetch() -> dict[str, Any]:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return dict(json.load(answer))

    try:
        answer = await trio.to_thread.run_sync(fetch)
    except urllib.error.URLError:
        return []  # it doesn't listen yet
    assert answer["status"] == "success", (query, answer)
    return [float(one["value"][1]) for one in answer["data"]["result"]]


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="no prometheus (Debian: apt-get install prometheus)")
async def test_each_query_has_an_answer(nats: NatsServer, tmp_path: Path) -> None:
    async with running_daemon(tmp_path, nats.port) as daemon:
        await daemon.until(lambda status: status["connected"])
        async with prometheus(tmp_path, daemon.port) as port:
            with trio.fail_after(60):
                while not await asked(port, "choria_provisioner_connected == 1"):
                    await trio.sleep(0.2)
            # A rate needs a value before.
            async with fleet(nats, 40), fleet(nats, 5, Kind.REFUSING):
                missing = list(QUERIES)
                with trio.move_on_after(90):
                    while missing:
                        missing = [(title, query) for title, query in missing if not await answered(port, query)]
                        await trio.sleep(0.5)
    assert missing == []


async def answered(port: int, query: str) -> bool:
    """As Grafana asks it, with this test's names for its variables."""
    query = query.replace("$site", "testing").replace("$__rate_interval", "30s")
    assert "$" not in query
    values = await asked(port, query)
    return any(not math.isnan(value) for value in values)
