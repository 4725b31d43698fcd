"""Who may write what: the accounts of docs/examples/mesh-accounts.conf as they stand, on a real nats-server (B7)."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from provisioner.bus.interface import Bus
from provisioner.bus.keyvalue import KeyValue
from provisioner.errors import BusError, PermissionDenied
from provisioner.registry.client import NodeClient
from provisioner.registry.keys import SHAPES
from provisioner.registry.table import TABLE
from tests.integration.mesh import Mesh, mesh, served

THREE = ("needs", "applied", "collect")
N1 = {"registry": "bound", "needs": "n1.app.bound.db", "applied": "n1.app", "collect": "n1.hosts.app"}
N2 = {what: key.replace("n1", "n2") for what, key in N1.items()}
N10 = {what: key.replace("n1", "n10") for what, key in N1.items()}


async def refused(attempt: Awaitable[object]) -> None:
    with pytest.raises(PermissionDenied, match="permissions violation"):
        await attempt


async def every(what: tuple[str, ...], bus: Bus, attempt: Callable[[KeyValue, str], Awaitable[object]]) -> None:
    for word in what:
        await attempt(KeyValue(bus, SHAPES[word].bucket), word)


async def stored(made: Mesh) -> None:
    """Something in every bucket, for node n1 and n2."""
    for what in SHAPES:
        for key in {N1[what], N2[what], N10[what]}:
            await made.bucket(what).put(key, b"1")


async def test_the_service_writes_the_registry_and_nothing_else(tmp_path: Path) -> None:
    async with mesh(tmp_path) as made, made.account("mesh-provisioner") as bus:
        await stored(made)
        registry = KeyValue(bus, SHAPES["registry"].bucket)
        revision = await registry.update("bound", b"2", (await made.bucket("registry").entries())["bound"].revision)
        await registry.delete("bound", revision)
        await registry.create("bound", b"3")

        async def write(bucket: KeyValue, what: str) -> None:
            await refused(bucket.put(N1[what], b"2"))
            await refused(bucket.put("n1.new.key.x", b"2"))
            await refused(bucket.delete(N1[what]))

        await every(THREE, bus, write)


async def test_the_service_lists_all_four_and_reads_each_key(tmp_path: Path) -> None:
    async with mesh(tmp_path) as made, made.account("mesh-provisioner") as bus:
        await stored(made)

        async def read(bucket: KeyValue, what: str) -> None:
            assert set(await bucket.entries()) == {N1[what], N2[what], N10[what]}
            entry = await bucket.get(N1[what])
            assert entry is not None
            assert entry.value == b"1"

        await every(tuple(SHAPES), bus, read)


async def test_a_question_is_answered_under_these_grants(tmp_path: Path) -> None:
    async with served(tmp_path) as (made, _):
        assert len((await made.ask()).items) == len(TABLE)
        for what in THREE:
            assert (await made.ask(what)).items == []


async def test_a_client_keeps_its_own_nodes_keys(tmp_path: Path) -> None:
    async with mesh(tmp_path) as made:

        async def keep(bucket: KeyValue, what: str) -> None:
            revision = await bucket.create(N1[what], b"1")
            revision = await bucket.update(N1[what], b"2", revision)
            entry = await bucket.get(N1[what])
            assert entry is not None
            assert entry.value == b"2"
            await bucket.delete(N1[what], revision)
            assert await bucket.get(N1[what]) is None
            await bucket.create(N1[what], b"3")

        await every(THREE, made.client, keep)


@pytest.mark.parametrize("keys", [N2, N10], ids=["n2", "n10"])
async def test_a_client_can_not_touch_or_read_another_nodes_keys(tmp_path: Path, keys: dict[str, str]) -> None:
    async with mesh(tmp_path) as made:
        await stored(made)

        async def touch(bucket: KeyValue, what: str) -> None:
            await refused(bucket.put(keys[what], b"2"))
            await refused(bucket.delete(keys[what]))
            await refused(bucket.get(keys[what]))

        await every(THREE, made.client, touch)
        for what in THREE:
            assert (await made.bucket(what).entries())[keys[what]].value == b"1"


async def test_a_client_reads_the_registry_and_can_not_write_it(tmp_path: Path) -> None:
    async with served(tmp_path) as (made, _):
        registry = made.bucket("registry", made.client)
        entry = await registry.get("bound")
        assert entry is not None
        assert json.loads(entry.value)["from"]["bucket"] == "{provider}_bound"
        await refused(registry.put("bound", b"{}"))
        await refused(registry.delete("bound"))
        await refused(registry.create("mine", b"{}"))


async def test_there_is_no_way_round_the_grant_of_a_key(tmp_path: Path) -> None:
    async with mesh(tmp_path) as made:
        await stored(made)

        async def go_round(bucket: KeyValue, what: str) -> None:
            await refused(bucket.api(f"STREAM.MSG.GET.{bucket.stream}", {"seq": 1}))
            await refused(made.client.request(f"$JS.API.DIRECT.GET.{bucket.stream}", b'{"seq":1}', timeout=5))
            await refused(bucket.api(f"STREAM.PURGE.{bucket.stream}", {}))
            await refused(bucket.api(f"STREAM.DELETE.{bucket.stream}", {}))
            await refused(bucket.api(f"STREAM.MSG.DELETE.{bucket.stream}", {"seq": 1}))

        await every(THREE, made.client, go_round)


def consumer(bucket: KeyValue, bus: Bus, pattern: str) -> dict[str, object]:
    config = {"name": "c1", "deliver_subject": bus.new_inbox(), "ack_policy": "none", "filter_subject": pattern}
    return {"stream_name": bucket.stream, "config": config}


async def test_a_client_watches_its_own_part_only(tmp_path: Path) -> None:
    async with mesh(tmp_path) as made:
        await stored(made)

        async def watch(bucket: KeyValue, what: str) -> None:
            own = f"$KV.{bucket.bucket}.n1.>"
            create = f"CONSUMER.CREATE.{bucket.stream}.c1.{own}"
            answer = await bucket.api(create, consumer(bucket, made.client, own))
            assert answer["num_pending"] == 1
            # The filter in the body has to be the one in the subject, on which the grant is.
            with pytest.raises(BusError) as wrong:
                await bucket.api(create, consumer(bucket, made.client, f"$KV.{bucket.bucket}.>"))
            assert getattr(wrong.value, "code", None) == 10131
            await refused(bucket.api(f"CONSUMER.CREATE.{bucket.stream}", consumer(bucket, made.client, own)))

        await every(THREE, made.client, watch)


async def test_a_provider_reads_the_needs_and_writes_nothing(tmp_path: Path) -> None:
    async with served(tmp_path) as (made, _), made.account("postgres-provider") as bus:
        await stored(made)
        needs = KeyValue(bus, SHAPES["needs"].bucket)
        assert set(await needs.entries()) == {N1["needs"], N2["needs"], N10["needs"]}
        entry = await needs.get(N2["needs"])
        assert entry is not None
        assert entry.value == b"1"
        assert (await NodeClient(bus, "db1").resolve("port")) is not None

        async def write(bucket: KeyValue, what: str) -> None:
            await refused(bucket.put(N1[what], b"2"))
            await refused(bucket.delete(N1[what]))
            if what not in ("needs", "registry"):
                await refused(bucket.get(N1[what]))
                await refused(bucket.status())

        await every(tuple(SHAPES), bus, write)


async def test_only_the_service_listens_to_the_verb(tmp_path: Path) -> None:
    async with mesh(tmp_path) as made, made.account("postgres-provider") as provider:
        for bus in (made.client, provider):
            with pytest.raises(PermissionDenied):
                async with bus.subscribe("mesh-provisioner.provisioning", lambda _: None):
                    pass
