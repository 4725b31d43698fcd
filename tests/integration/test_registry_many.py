"""Fifty thousand items over five hundred nodes, and two hundred who ask at once: each is answered, and rightly."""

import json
import resource
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trio

from provisioner.registry.client import VERB, ask, ask_pages, read_answer
from provisioner.registry.keys import COLLECT
from tests.integration.mesh import Mesh, connection, mesh, ready, served, serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

KEYS, NODES = 50_000, 500


async def fill(made: Mesh) -> None:
    for number in range(KEYS):
        key = COLLECT.key(f"node{number % NODES}.example.net", "shell:zsh", f"module{number // NODES}")
        made.controller.publish(f"$KV.{COLLECT.bucket}.{key}", json.dumps({"order": number, "text": "x" * 60}).encode())
        if number % 500 == 0:
            await made.controller.flush(60)
    for number in range(30):
        made.controller.publish(f"$KV.{COLLECT.bucket}.lost{number}", b"1")
    await made.controller.flush(60)


async def test_fifty_thousand_items(tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with served(tmp_path) as (made, service):
        await fill(made)
        with trio.fail_after(200):
            while service.mirrors["collect"].keys != (KEYS + 30, 30):
                await trio.sleep(0.1)
        page = await made.until_answered("collect", items=KEYS)
        assert len({item["key"] for item in page.items}) == KEYS
        assert len(page.bad_keys) == page.bad_keys_total == 30
        pages = [page async for page in ask_pages(made.client, "collect", timeout=60)]
        assert sum(len(page.items) for page in pages) == KEYS
        assert {page.bad_keys_total for page in pages} == {30}
        assert 10 <= len(pages) <= 20
        found = await ask(made.client, "collect", timeout=60, node="node7.example.net")
        assert len(found.items) == KEYS // NODES
        found = await ask(made.client, "collect", timeout=60, module="module3")
        assert len(found.items) == NODES
        # Asker and service in one process, each with all of it: far from what would be a leak.
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 600 * 1024


@pytest.mark.parametrize("narrowing", [{}, {"module": "module3"}, {"node": "node7.example.net"}], ids=str)
async def test_two_hundred_at_once_over_all_of_it(tmp_path: Path, narrowing: dict[str, str]) -> None:
    # Two hundred megabytes for one asker: a server with its usual limits cuts off who reads more slowly than they come.
    # Also for that, the service is in a process of its own.
    roomy = 'max_pending: 512MB\nwrite_deadline: "60s"\n'
    async with (
        mesh(tmp_path, config=roomy) as made,
        serving(tmp_path, *connection(made, tmp_path, "mesh-provisioner")) as (_, port),
    ):
        await fill(made)
        await ready(port)
        await made.until_answered("collect", items=KEYS)
        answers: list[Any] = []
        data = json.dumps({"what": "collect", **narrowing}).encode()

        async def question() -> None:
            answers.append(read_answer((await made.client.request(VERB, data, timeout=200)).data))

        async with trio.open_nursery() as nursery:
            for _ in range(200):
                nursery.start_soon(question)
        sizes = Counter(len(page.items) for page in answers)
        assert len(answers) == 200
        assert len(sizes) == 1
        assert all(page.bad_keys_total == 30 for page in answers)
