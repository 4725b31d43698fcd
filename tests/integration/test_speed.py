"""That nothing has become slow: ratios to a yardstick of the same run, never seconds (``benchmarks/``).

The bounds are three times worse than what is measured on a busy machine: they find an accident, not a nuance.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.scale import waiting
from benchmarks.site import Site, make_site
from benchmarks.throughput import Case, measure
from benchmarks.yardstick import echoes, spawns

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with tempfile.TemporaryDirectory(prefix="benchmark.") as directory:
        yield make_site(Path(directory))


async def test_a_process_for_each_server(site: Site) -> None:
    bare = await spawns(site, "sh", 1.0)
    run = await measure(site, Case(), 400)
    assert run.rate / bare > 0.12, (run, bare)
    # Both are CPU, which a busy machine doesn't take away: what we add to what the helper itself costs.
    assert run.own_cpu / run.helper_cpu < 3, run


async def test_no_process_for_each_server(site: Site) -> None:
    bare = await echoes(site, "plain", 1.0)
    few = await measure(site, Case(helper="in-process"), 400)
    many = await measure(site, Case(helper="in-process"), 2000)
    assert 4 * many.rate / bare > 0.03, (many, bare)
    assert many.own_cpu / few.own_cpu < 1.7, (few, many)
    assert many.own_cpu / many.fleet_cpu < 4, many
    assert many.rss < 100, many


async def test_tls(site: Site) -> None:
    plain = await measure(site, Case(version=2, signed=True, helper="in-process"), 1000)
    secure = await measure(site, Case(version=2, signed=True, helper="in-process", transport="tls"), 1000)
    assert secure.own_cpu / plain.own_cpu < 1.8, (plain, secure)


async def test_servers_that_wait(site: Site) -> None:
    found = await waiting(site, 20_000)
    first, last = found[0], found[-1]
    assert (last.rss - first.rss) * 1048576 / (last.servers - first.servers) < 4096, found
    assert last.admission / found[1].admission < 3, found
    assert last.answer / found[1].answer < 3, found
