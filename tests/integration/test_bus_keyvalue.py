"""Key-value buckets, on the JetStream of a real server and on that of the memory bus."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import trio

from provisioner.bus.interface import Bus
from provisioner.bus.keyvalue import MAX_KEY, Begin, CaughtUp, Entry, Event, KeyValue, Lost, Watch, check_key
from provisioner.errors import (
    BucketMissing,
    ConnectionLost,
    NoResponders,
    PermissionDenied,
    RevisionConflict,
    Stale,
    StoreError,
    TooLarge,
)
from tests.integration.buses import LIMIT, World, world_of
from tests.integration.test_bus_conformance import Heard


@pytest.fixture(params=["memory", "nats"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    async with world_of(request.param, tmp_path) as made:
        yield made


@pytest.fixture
async def bus(world: World) -> AsyncIterator[Bus]:
    async with world.connect() as made:
        yield made


@pytest.fixture
async def store(bus: Bus) -> KeyValue:
    made = KeyValue(bus, "b", timeout=20)
    await made.create_bucket()
    return made


class Seen:
    """A handler that keeps a table as a careful user does, and can be waited for."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.table: dict[str, bytes] = {}
        self._more = trio.Event()

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, Begin):
            self.table.clear()
        elif isinstance(event, Entry):
            if event.deleted:
                self.table.pop(event.key, None)
            else:
                self.table[event.key] = event.value
        self._more.set()
        self._more = trio.Event()

    async def until(self, true: Callable[[], bool], seconds: float = 30) -> None:
        with trio.fail_after(seconds):
            while not true():
                await self._more.wait()

    def kinds(self) -> list[str]:
        return [type(event).__name__ for event in self.events]


async def test_compare_and_set(store: KeyValue) -> None:
    assert await store.get("k") is None
    assert await store.create("k", b"1") == 1
    entry = await store.get("k")
    assert entry is not None
    assert (entry.key, entry.value, entry.revision, entry.operation) == ("k", b"1", 1, "PUT")
    with pytest.raises(RevisionConflict, match="wrong last sequence"):
        await store.create("k", b"other")
    assert await store.update("k", b"2", 1) == 2
    with pytest.raises(RevisionConflict):
        await store.update("k", b"3", 1)
    with pytest.raises(RevisionConflict):
        await store.update("new", b"3", 1)
    assert await store.update("new", b"3", 0) == 3
    with pytest.raises(RevisionConflict):
        await store.delete("k", 1)
    assert await store.delete("k", 2) == 4
    assert await store.get("k") is None
    assert await store.create("k", b"again") == 5
    assert await store.put("k", b"whatever") == 6
    assert await store.delete("k") == 7
    # The marker's sequence is good for an update: a polite hand-over (live.md 3).
    assert await store.update("k", b"taken over", 7) == 8


async def test_values_are_bytes(store: KeyValue) -> None:
    for value in (b"", b"\x00\xff\r\n", b"x" * 60000):
        revision = await store.put("k", value)
        entry = await store.get("k")
        assert entry is not None
        assert (entry.value, entry.revision, entry.deleted) == (value, revision, False)
    with pytest.raises(TooLarge):
        await store.put("k", b"x" * (LIMIT + 1))


async def test_status(store: KeyValue, bus: Bus) -> None:
    status = await store.status()
    assert (status.bucket, status.last_sequence, status.values, status.ttl, status.history) == ("b", 0, 0, 0, 1)
    assert status.created
    await store.put("k", b"1")
    await store.put("k", b"2")
    assert ((await store.status()).last_sequence, (await store.status()).values) == (2, 1)
    assert (await store.status()).created == status.created
    other = KeyValue(bus, "lease", timeout=20)
    await other.create_bucket(ttl=2.5, history=3)
    assert ((await other.status()).ttl, (await other.status()).history) == (2.5, 3)
    with pytest.raises(StoreError, match="different configuration") as caught:
        await other.create_bucket(ttl=60)
    assert caught.value.code == 10058
    await other.create_bucket(ttl=2.5, history=3)


async def test_a_bucket_that_is_not_there(bus: Bus) -> None:
    store = KeyValue(bus, "none", timeout=20)
    with pytest.raises(BucketMissing, match="none: stream not found"):
        await store.status()
    with pytest.raises(BucketMissing):
        await store.entries()
    with trio.fail_after(20):
        with pytest.raises(NoResponders):
            await store.put("k", b"")
        with pytest.raises(NoResponders):
            await store.create("k", b"")
        with pytest.raises(NoResponders):
            await store.delete("k")
        with pytest.raises(NoResponders):
            await store.get("k")


async def test_a_lease_expires_and_can_be_taken(bus: Bus) -> None:
    store = KeyValue(bus, "lease", timeout=20)
    await store.create_bucket(ttl=1)
    revision = await store.create("k", b"a")
    await store.update("k", b"a", revision)
    taken = 0
    with trio.fail_after(30):
        while not taken:
            await trio.sleep(0.1)
            try:
                taken = await store.create("k", b"b")
            except RevisionConflict:
                continue
    entry = await store.get("k")
    assert entry is not None
    assert entry.value == b"b"
    with pytest.raises(RevisionConflict):
        await store.update("k", b"a", revision + 1)


BAD_KEYS = ["", "a..b", ".a", "a.", "a b", "*", ">", "a.*", "ü", "a\x00", "a\r\n", "a:b", "x" * (MAX_KEY + 1)]


@pytest.mark.parametrize("key", BAD_KEYS)
async def test_a_bad_key_is_refused_at_once(store: KeyValue, key: str) -> None:
    for ask in (
        lambda: store.get(key),
        lambda: store.put(key, b""),
        lambda: store.create(key, b""),
        lambda: store.update(key, b"", 1),
    ):
        with pytest.raises(ValueError, match="not a key"):
            await ask()
    assert (await store.status()).last_sequence == 0


async def test_good_keys(store: KeyValue) -> None:
    for key in ("a/b=c_d-e.F", "x" * MAX_KEY, "0", "-", "n1.shell=3Azsh=3Anormal.zshmod"):
        check_key(key)
        await store.put(key, b"v")
        assert (await store.get(key)) is not None


@pytest.mark.parametrize("bucket", ["", "a.b", "../KV_x", "a b", "*", "ü", "x" * 129])
async def test_a_bad_bucket_is_refused(bus: Bus, bucket: str) -> None:
    with pytest.raises(ValueError, match="not the name of a bucket"):
        KeyValue(bus, bucket)


async def test_what_a_careless_client_stored_is_seen_and_can_be_deleted(store: KeyValue, bus: Bus) -> None:
    for key in ("shell:zsh", "a.*", "b.>", "c*d"):
        await bus.request(f"$KV.b.{key}", b"v", timeout=20)
    found = await store.entries()
    assert set(found) == {"shell:zsh", "a.*", "b.>", "c*d"}
    for key, entry in found.items():
        await store.delete(key, entry.revision)
    assert await store.entries() == {}


async def test_entries_are_all_or_an_error(store: KeyValue) -> None:
    assert await store.entries() == {}
    for number in range(300):
        await store.put(f"n{number}.x", b"%d" % number)
    await store.delete("n7.x")
    found = await store.entries()
    assert {key: entry.value for key, entry in found.items()} == {
        f"n{number}.x": b"%d" % number for number in range(300) if number != 7
    }
    assert found["n8.x"].revision == 9


async def test_a_watch_tells_what_is_there_and_what_comes(store: KeyValue) -> None:
    await store.put("a", b"1")
    await store.put("b", b"2")
    await store.put("a", b"3")
    await store.delete("b")
    seen = Seen()
    async with store.watch(seen) as watch:
        await seen.until(lambda: "CaughtUp" in seen.kinds())
        assert seen.kinds() == ["Begin", "Entry", "Entry", "CaughtUp"]
        _, first, second, done = seen.events
        assert isinstance(first, Entry)
        assert isinstance(second, Entry)
        assert (first.key, first.value, first.revision, first.operation) == ("a", b"3", 3, "PUT")
        assert (second.key, second.value, second.revision, second.operation) == ("b", b"", 4, "DEL")
        assert done == CaughtUp(4)
        assert (watch.fresh, watch.reason, watch.sequence) == (True, "", 4)
        entry = await store.get("a")
        assert entry is not None
        assert abs(entry.created - first.created) < 0.001
        await store.put("c", b"4")
        assert (await watch.confirm(20)).last_sequence == 5
        assert seen.table == {"a": b"3", "c": b"4"}


async def test_a_watch_in_doubt_reads_all_anew(store: KeyValue) -> None:
    await store.put("a", b"1")
    seen = Seen()
    async with store.watch(seen) as watch:
        assert (await watch.confirm(20)).values == 1
        watch.doubt("for a test")
        await seen.until(lambda: seen.kinds().count("CaughtUp") == 2)
        assert seen.kinds() == ["Begin", "Entry", "CaughtUp", "Lost", "Begin", "Entry", "CaughtUp"]
        assert Lost("for a test") in seen.events


async def test_the_headers_of_a_stored_message_are_its_writers_not_the_servers(store: KeyValue, bus: Bus) -> None:
    forged = {
        "Status": "100",
        "Description": "Idle Heartbeat",
        "Nats-Last-Consumer": "99",
        "Nats-Consumer-Stalled": "$KV.b.victim",
    }
    await store.put("victim", b"untouched")
    seen = Seen()
    async with store.watch(seen) as watch:
        await bus.request("$KV.b.forged", b"1", timeout=20, headers=forged)
        await watch.confirm(20)
        assert seen.table == {"victim": b"untouched", "forged": b"1"}
        await store.put("k", b"2")
        await watch.confirm(20)
        assert "Lost" not in seen.kinds()
    assert (await store.entries()).keys() == {"victim", "forged", "k"}
    assert (await store.status()).last_sequence == 3


async def test_an_empty_bucket_is_caught_up(store: KeyValue) -> None:
    seen = Seen()
    async with store.watch(seen) as watch:
        await seen.until(lambda: "CaughtUp" in seen.kinds())
        assert (await watch.confirm(20)).last_sequence == 0
        assert seen.events == [Begin(), CaughtUp(0)]


async def test_a_confirmed_watch_has_every_write_that_was_acknowledged(store: KeyValue) -> None:
    seen = Seen()
    async with store.watch(seen) as watch:
        for number in range(200):
            await store.put(f"k{number % 7}", b"%d" % number)
            await watch.confirm(20)
            assert seen.table[f"k{number % 7}"] == b"%d" % number


async def test_a_watch_of_a_part(store: KeyValue) -> None:
    for key in ("n1.a", "n10.a", "n2.n1.a", "n1.b.c"):
        await store.put(key, b"1")
    seen = Seen()
    async with store.watch(seen, keys="n1.>") as watch:
        await seen.until(lambda: "CaughtUp" in seen.kinds())
        assert set(seen.table) == {"n1.a", "n1.b.c"}
        await store.put("n10.b", b"2")
        await store.put("n1.c", b"2")
        await seen.until(lambda: "n1.c" in seen.table)
        assert set(seen.table) == {"n1.a", "n1.b.c", "n1.c"}
        with pytest.raises(ValueError, match="a part"):
            await watch.confirm()
    with pytest.raises(ValueError, match="not a pattern"):
        async with store.watch(seen, keys="a..b"):
            pass


async def test_what_a_watch_handler_raises_ends_nothing(store: KeyValue, caplog: pytest.LogCaptureFixture) -> None:
    def fails(_: Event) -> None:
        raise ValueError("mine")

    async with store.watch(fails) as watch:
        await store.put("k", b"1")
        await watch.confirm(20)
    assert "An event of bucket b was not handled" in caplog.text


async def test_the_bodys_error_comes_out_plain(store: KeyValue) -> None:
    with pytest.raises(KeyError, match="mine"):
        async with store.watch(Seen()):
            raise KeyError("mine")


async def _fresh(watch: Watch) -> None:
    """Asks, as a service is asked, until it can answer."""
    with trio.fail_after(30):
        while True:
            try:
                await watch.confirm()
            except (Stale, ConnectionLost, BucketMissing, NoResponders):
                await trio.sleep(0.05)
            else:
                return


async def test_a_watch_survives_an_outage_and_sees_what_it_missed(world: World, store: KeyValue, bus: Bus) -> None:
    await store.put("a", b"1")
    await store.put("b", b"1")
    seen = Seen()
    async with store.watch(seen) as watch:
        await watch.confirm(20)
        for _ in range(3):
            seen.events.clear()
            epoch = bus.epoch
            await world.cut()
            with trio.fail_after(20):
                while bus.connected:
                    await trio.sleep(0.01)
            with pytest.raises((ConnectionLost, Stale)):
                await watch.confirm()
            await world.heal()
            with trio.fail_after(20):
                await bus.wait_epoch_change(epoch)
            await store.put("a", b"%d" % epoch)
            await _fresh(watch)
            assert seen.table == {"a": b"%d" % epoch, "b": b"1"}
            assert "Lost" in seen.kinds()
            assert "Begin" in seen.kinds()
        await seen.until(lambda: watch.fresh)
    with trio.fail_after(30):
        while await world.consumers("b"):
            await trio.sleep(0.1)


async def test_a_dead_consumer_is_noticed(world: World, store: KeyValue, bus: Bus) -> None:
    seen = Seen()
    async with store.watch(seen) as watch:
        await watch.confirm(20)
        await _forget_consumers(world, bus)
        await store.put("k", b"1")
        # Nothing asks; the missing heartbeat alone tells.
        await seen.until(lambda: seen.table == {"k": b"1"})
        assert any(isinstance(event, Lost) and "sign of life" in event.reason for event in seen.events)

        await _forget_consumers(world, bus)
        await store.put("k", b"2")
        with pytest.raises(Stale):
            await watch.confirm(0.3)
        assert seen.table == {"k": b"1"}
        # Who asks finds out sooner.
        await _fresh(watch)
        assert seen.table == {"k": b"2"}


async def _forget_consumers(world: World, bus: Bus) -> None:
    for name in await world.consumers("b"):
        await bus.request(f"$JS.API.CONSUMER.DELETE.KV_b.{name}", b"", timeout=20)


async def test_a_bucket_made_anew_is_never_taken_for_the_old_one(store: KeyValue, bus: Bus) -> None:
    await store.put("old", b"1")
    await store.put("older", b"1")
    seen = Seen()
    async with store.watch(seen) as watch:
        await watch.confirm(20)
        await bus.request("$JS.API.STREAM.DELETE.KV_b", b"", timeout=20)
        with pytest.raises(BucketMissing):
            await watch.confirm()
        await store.create_bucket()
        await store.put("new", b"1")
        await _fresh(watch)
        assert seen.table == {"new": b"1"}

        # And by itself, when nobody asks.
        await bus.request("$JS.API.STREAM.DELETE.KV_b", b"", timeout=20)
        await seen.until(lambda: not watch.fresh)
        await seen.until(lambda: seen.events[-1] == Lost("b: stream not found"))
        await store.create_bucket()
        await store.put("newest", b"1")
        await seen.until(lambda: watch.fresh and seen.table == {"newest": b"1"})


async def test_a_watch_waits_for_its_bucket(bus: Bus) -> None:
    store = KeyValue(bus, "late", timeout=20)
    seen = Seen()
    async with store.watch(seen) as watch:
        await seen.until(lambda: "Lost" in seen.kinds())
        assert seen.events == [Lost("late: stream not found")]
        with pytest.raises(BucketMissing):
            await watch.confirm()
        await store.create_bucket()
        await seen.until(lambda: watch.fresh, 10)


async def test_a_watch_that_is_not_allowed_says_so(world: World, store: KeyValue, tmp_path: Path) -> None:
    seen = Seen()
    async with world.connect(bound=True) as bound:
        theirs = KeyValue(bound, "b", api_prefix="Secret.API")
        with pytest.raises(PermissionDenied, match="secret"):
            await theirs.put("k", b"")
        async with theirs.watch(seen):
            await seen.until(lambda: "Lost" in seen.kinds())
        assert "permissions violation" in str(seen.events[0])


async def test_writes_while_it_reads(store: KeyValue) -> None:
    for number in range(500):
        await store.put(f"k{number}", b"0")

    async def write_on() -> None:
        number = 0
        while True:
            number += 1
            await store.put(f"k{number % 500}", b"%d" % number)

    for _ in range(5):
        seen = Seen()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write_on)
            async with store.watch(seen) as watch:
                await watch.confirm(20)
                assert len(seen.table) == 500
            nursery.cancel_scope.cancel()


async def test_a_big_bucket_is_read_under_flow_control(tmp_path: Path) -> None:
    """The server stops sending until it is answered: 9 MB are several such stops."""
    answered = Heard()
    async with world_of("nats", tmp_path) as world, world.connect() as bus, world.connect() as other:
        store = KeyValue(bus, "b", timeout=20)
        await store.create_bucket()
        for number in range(6000):
            other.publish(f"$KV.b.n{number % 50}.k{number}", b"x" * 1500)
            if number % 500 == 0:
                await other.flush(20)
        await other.flush(20)
        with trio.fail_after(30):
            while (await store.status()).last_sequence < 6000:
                await trio.sleep(0.05)
        async with other.subscribe("$JS.FC.>", answered):
            seen = Seen()
            async with store.watch(seen) as watch:
                await watch.confirm(30)
            assert len(seen.table) == 6000
            await other.flush()
    assert answered.messages
