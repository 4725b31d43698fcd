"""What only the memory bus can: faults on demand, under a clock that jumps."""

import pytest
import trio
from trio.testing import MockClock

from provisioner.bus.interface import Bus, Message
from provisioner.bus.keyvalue import Entry, Event, KeyValue, Lost
from provisioner.bus.memory import MemoryBroker, MemoryBus, delaying, dropping, duplicating
from provisioner.bus.memory_streams import MemoryStreams
from provisioner.errors import (
    BucketMissing,
    ConnectionLost,
    NoReply,
    NoResponders,
    PermissionDenied,
    RevisionConflict,
    Stale,
)
from tests.integration.test_bus_conformance import Heard


async def test_a_bus_alone_has_a_broker_of_its_own() -> None:
    bus: Bus = MemoryBus()
    heard = Heard()
    async with bus.subscribe("a", heard):
        bus.publish("a", b"1")
        await bus.flush()
    assert heard.data == [b"1"]


async def test_faults(autojump_clock: MockClock) -> None:
    broker = MemoryBroker()
    ours, theirs = broker.connect(), broker.connect()
    heard = Heard()
    async with ours.subscribe("a.>", heard):
        broker.faults += [dropping("a.lost", times=2), delaying("a.late", 5.0), duplicating("a.*", times=1)]
        for number in range(3):
            theirs.publish("a.lost", b"lost %d" % number)
        theirs.publish("a.late", b"late")
        theirs.publish("a.b", b"last")
        await ours.flush()
        assert heard.data == [b"lost 2", b"lost 2", b"last"]
        await trio.sleep(4.9)
        assert len(heard.messages) == 3
        await trio.sleep(0.2)
        assert heard.data[3:] == [b"late"]
        broker.faults[:] = [dropping("a.>")]
        theirs.publish("a.b", b"never")
        await trio.sleep(60)
        assert len(heard.messages) == 4


async def test_a_lost_request_times_out_by_the_clock_of_the_test(autojump_clock: MockClock) -> None:
    broker = MemoryBroker()
    bus = broker.connect()

    def answer(message: Message) -> None:
        bus.publish(message.reply, b"yes")

    async with bus.subscribe("ask", answer):
        broker.faults.append(dropping("ask", times=1))
        began = trio.current_time()
        with pytest.raises(NoReply):
            await bus.request("ask", b"", timeout=30)
        assert trio.current_time() == began + 30
        assert (await bus.request("ask", b"", timeout=30)).data == b"yes"


async def test_one_connection_is_cut_and_not_the_other(autojump_clock: MockClock) -> None:
    broker = MemoryBroker()
    ours, theirs = broker.connect(), broker.connect()
    heard, other = Heard(), Heard()
    async with ours.subscribe("a", heard), theirs.subscribe("a", other):
        theirs.publish("a", b"under way")
        ours.disconnect("cable cut")
        assert (ours.connected, theirs.connected, ours.last_error) == (False, True, "cable cut")
        with pytest.raises(ConnectionLost, match="cable cut"):
            ours.publish("a", b"")
        theirs.publish("a", b"meanwhile")
        await theirs.flush()
        ours.reconnect()
        theirs.publish("a", b"after")
        await theirs.flush()
    assert heard.data == [b"after"]
    assert other.data == [b"under way", b"meanwhile", b"after"]
    assert (ours.epoch, theirs.epoch) == (2, 1)


async def test_a_message_that_the_broker_holds_back_survives_a_short_outage(autojump_clock: MockClock) -> None:
    broker = MemoryBroker()
    bus, heard = broker.connect(), Heard()
    async with bus.subscribe("a", heard):
        broker.faults.append(delaying("a", 5))
        bus.publish("a", b"")
        bus.disconnect()
        await trio.sleep(1)
        bus.reconnect()
        await trio.sleep(10)
        assert heard.messages == [Message("a", b"")]  # it was the server that held it, not the connection


async def test_permissions_may_change(autojump_clock: MockClock) -> None:
    bus = MemoryBroker().connect(deny_publish=["secret.>"])
    with pytest.raises(PermissionDenied):
        await bus.request("secret.a", b"", timeout=5)
    bus.deny_publish.clear()
    with pytest.raises(NoResponders):
        await bus.request("secret.a", b"", timeout=5)


async def test_handlers_that_talk_to_each_other_for_ever_leave_others_their_turn() -> None:
    bus = MemoryBus()

    def again(message: Message) -> None:
        bus.publish("a", b"")

    async with bus.subscribe("a", again):
        bus.publish("a", b"")
        for _ in range(100):
            await trio.lowlevel.checkpoint()


async def test_a_lease_follows_the_clock_of_the_test(autojump_clock: MockClock) -> None:
    broker = MemoryBroker()
    MemoryStreams(broker)
    store = KeyValue(broker.connect(), "lease")
    await store.create_bucket(ttl=60)
    revision = await store.create("k", b"a")
    await trio.sleep(59)
    revision = await store.update("k", b"a", revision)
    await trio.sleep(59)
    with pytest.raises(RevisionConflict):
        await store.create("k", b"b")
    await trio.sleep(1.1)
    assert await store.get("k") is None
    assert await store.create("k", b"b") == revision + 1


async def test_a_broker_of_choria_gives_less_of_jetstream() -> None:
    """Only the bucket's description and writes below its prefix, no reads (wire-protocol 10.1)."""
    broker = MemoryBroker()
    MemoryStreams(broker, api_prefix="choria.streams", verbs=["STREAM.INFO", "STREAM.CREATE"])
    bus = broker.connect()
    store = KeyValue(bus, "CHORIA_LEADER_ELECTION", api_prefix="choria.streams")
    await store.create_bucket(ttl=60)
    heard = Heard()
    async with bus.subscribe("choria.streams.$KV.CHORIA_LEADER_ELECTION.provisioner", heard):
        revision = await store.create("provisioner", b"one")
        await bus.flush()
    assert heard.data == [b"one"]
    assert (await store.status()).ttl == 60
    with pytest.raises(NoResponders):
        await store.get("provisioner")
    with pytest.raises(RevisionConflict):
        await store.create("provisioner", b"two")
    marker = await store.delete("provisioner", revision)
    with pytest.raises(RevisionConflict):
        await store.create("provisioner", b"two")  # the marker can't be read here
    assert await store.update("provisioner", b"two", marker) == marker + 1


async def test_jetstream_off_and_on_and_a_bucket_gone(autojump_clock: MockClock) -> None:
    broker = MemoryBroker()
    streams = MemoryStreams(broker)
    store = KeyValue(broker.connect(), "b")
    await store.create_bucket()
    await store.put("k", b"1")
    table: dict[str, bytes] = {}
    lost: list[str] = []

    def keep(event: Event) -> None:
        if isinstance(event, Entry):
            table[event.key] = event.value
        elif isinstance(event, Lost):
            table.clear()
            lost.append(event.reason)

    async with store.watch(keep) as watch:
        await watch.confirm()
        streams.stop()
        with pytest.raises(NoResponders):
            await watch.confirm()
        await trio.sleep(10)
        assert not watch.fresh
        assert "no sign of life" in lost[0]
        streams.start()
        await trio.sleep(5)
        await watch.confirm()
        assert table == {"k": b"1"}
        streams.buckets.clear()
        with pytest.raises(BucketMissing):
            await watch.confirm()
        await trio.sleep(10)
        assert (watch.fresh, lost[-1], table) == (False, "b: stream not found", {})


@pytest.mark.parametrize("asked", ["after the gap", "in the gap", "never"])
async def test_a_message_lost_on_the_way_to_a_watch_is_noticed(autojump_clock: MockClock, asked: str) -> None:
    broker = MemoryBroker()
    MemoryStreams(broker)
    store = KeyValue(broker.connect(), "b")
    await store.create_bucket()
    table: dict[str, bytes] = {}

    def keep(event: Event) -> None:
        if isinstance(event, Entry):
            table[event.key] = event.value

    async with store.watch(keep) as watch:
        await watch.confirm()
        lost = dropping("$KV.b.k", times=1)  # not the write itself, but what the watch is told of it
        broker.faults.append(lambda message: lost(message) if message.reply.startswith("$JS.ACK") else None)
        await store.put("k", b"1")
        if asked == "in the gap":
            with pytest.raises(Stale, match="the watch is behind"):
                await watch.confirm()
            assert table == {}
        if asked == "after the gap":
            await store.put("other", b"2")
            await watch.confirm()
            assert table == {"k": b"1", "other": b"2"}
        await trio.sleep(5)
        assert watch.fresh
        assert table["k"] == b"1"
