"""The mesh registry on the bus in memory, under a jumping clock: what takes hours, and what happens in between."""

import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
import trio
from attrs import define
from prometheus_client import CollectorRegistry
from trio.testing import MockClock

from provisioner.bus.keyvalue import KeyValue
from provisioner.bus.memory import MemoryBroker, MemoryBus, delaying, dropping
from provisioner.bus.memory_streams import MemoryStreams
from provisioner.errors import RegistryError, RevisionConflict
from provisioner.registry.buckets import Mirror, Reading
from provisioner.registry.client import VERB, ask
from provisioner.registry.keeper import TRIES, Keeper
from provisioner.registry.keys import APPLIED, REGISTRY, SHAPES
from provisioner.registry.metrics import Metrics
from provisioner.registry.rows import Rows
from provisioner.registry.serve import Service
from provisioner.registry.table import wanted


@define
class World:
    broker: MemoryBroker
    streams: MemoryStreams
    bus: MemoryBus
    theirs: MemoryBus
    service: Service

    def bucket(self, what: str) -> KeyValue:
        return KeyValue(self.theirs, SHAPES[what].bucket)

    async def content(self, what: str = "registry") -> dict[str, bytes]:
        return {key: entry.value for key, entry in (await self.bucket(what).entries()).items()}

    async def last(self, what: str = "registry") -> int:
        return (await self.bucket(what).status()).last_sequence

    def count(self, outcome: str) -> float:
        return float(self.service.metrics.reconciles.labels(outcome)._value.get())

    async def until(self, true: Callable[[], object]) -> None:
        with trio.fail_after(10_000):
            while not true():
                await trio.sleep(0.02)


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    broker = MemoryBroker()
    streams = MemoryStreams(broker)
    bus, theirs = broker.connect(), broker.connect()
    for shape in SHAPES.values():
        await KeyValue(theirs, shape.bucket).create_bucket()
    async with trio.open_nursery() as nursery:
        made = World(broker, streams, bus, theirs, Service(bus, CollectorRegistry()))

        async def run(task_status: Any) -> None:
            await made.service.run(task_status=task_status)

        await nursery.start(run)
        yield made
        nursery.cancel_scope.cancel()


class Plain:
    """Reads the bucket when asked, without a watch: an hour of heartbeats takes seconds of a test."""

    def __init__(self, bucket: KeyValue) -> None:
        self._bucket = bucket

    async def read(self) -> Reading:
        rows = Rows(REGISTRY)
        for entry in (await self._bucket.entries()).values():
            rows.put(entry.key, entry.value, entry.revision)
        return Reading(rows, 0)


@define
class Kept:
    """A keeper alone, and its bucket."""

    streams: MemoryStreams
    bucket: KeyValue
    keeper: Keeper

    async def until(self, outcome: str, times: int, *, step: float = 1) -> None:
        """Waits for the end of a comparison."""
        with trio.fail_after(100_000):
            while self.keeper._metrics.reconciles.labels(outcome)._value.get() < times:
                await trio.sleep(step)

    async def content(self) -> dict[str, bytes]:
        return {key: entry.value for key, entry in (await self.bucket.entries()).items()}


@asynccontextmanager
async def kept(*, bucket: bool = True) -> AsyncIterator[Kept]:
    broker = MemoryBroker()
    streams = MemoryStreams(broker)
    store = KeyValue(broker.connect(), REGISTRY.bucket)
    if bucket:
        await store.create_bucket()
    keeper = Keeper(Plain(store), store, wanted(), Metrics(CollectorRegistry()))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keeper.run)
        yield Kept(streams, store, keeper)
        nursery.cancel_scope.cancel()


async def test_every_hour_what_differs_is_put_right(autojump_clock: MockClock) -> None:
    async with kept() as made:
        await made.until("reconciled", 1)
        assert await made.content() == wanted()
        filled = trio.current_time()
        await made.bucket.put("port", b"tampered")
        await made.bucket.put("retired", b"x")
        await trio.sleep(3590)
        assert (await made.content())["port"] == b"tampered"
        await made.until("reconciled", 2)
        assert 3599 <= trio.current_time() - filled <= 3602
        assert await made.content() == wanted()
        last = (await made.bucket.status()).last_sequence
        await made.until("reconciled", 12)
        assert (await made.bucket.status()).last_sequence == last, "hours of nothing to do are hours without a write"
        assert made.keeper._metrics.reconciles.labels("failed")._value.get() == 0


async def test_a_failed_hour_ends_nothing_and_waits_for_the_next(autojump_clock: MockClock) -> None:
    async with kept() as made:
        await made.until("reconciled", 1)
        await made.bucket.put("port", b"tampered")
        await trio.sleep(3000)
        made.streams.stop()
        await made.until("failed", 1)
        failed = trio.current_time()
        assert made.keeper.problem == "", "an hour that failed is no reason to take the service out"
        await trio.sleep(1000)
        made.streams.start()
        await trio.sleep(1000)
        assert (await made.content())["port"] == b"tampered"
        await made.until("reconciled", 2)
        assert 3599 <= trio.current_time() - failed <= 3602
        assert await made.content() == wanted()


async def test_at_start_it_tries_again_in_one_second_doubling_to_a_minute(autojump_clock: MockClock) -> None:
    async with kept(bucket=False) as made:
        times: list[float] = []
        for number in range(1, 11):
            await made.until("failed", number, step=0.1)
            times.append(trio.current_time())
        pauses = [later - earlier for earlier, later in pairwise(times)]
        for pause, nominal in zip(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60], strict=True):
            assert abs(pause - nominal) < 0.2, pauses
        assert made.keeper.problem != ""
        await made.bucket.create_bucket()
        await made.until("reconciled", 1)
        assert made.keeper.problem == ""
        assert await made.content() == wanted()


async def test_made_anew_while_it_is_compared_it_is_the_start_again(autojump_clock: MockClock) -> None:
    broker = MemoryBroker()
    MemoryStreams(broker)
    bucket = KeyValue(broker.connect(), REGISTRY.bucket)
    await bucket.create_bucket()
    times: list[float] = []

    class Meddling(Plain):
        async def read(self) -> Reading:
            times.append(trio.current_time())
            if len(times) == 1:
                keeper.begin_again()
            elif len(times) == 2:
                raise RegistryError("unavailable", "for a test")
            return await super().read()

    keeper = Keeper(Meddling(bucket), bucket, wanted(), Metrics(CollectorRegistry()))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keeper.run)
        await trio.sleep(10)
        assert len(times) == 3, "what failed at a start is tried again in a second, not in an hour"
        assert keeper.problem == ""
        nursery.cancel_scope.cancel()


async def test_a_bucket_made_anew_is_filled_at_once(autojump_clock: MockClock) -> None:
    async with world() as made:
        await made.until(lambda: made.service.problems() == {})
        started = trio.current_time()
        made.streams.buckets.pop("KV_mesh-provisioner_registry")
        await made.bucket("registry").create_bucket()
        await made.until(lambda: made.count("reconciled") == 2)
        assert trio.current_time() - started < 60
        assert await made.content() == wanted()


class Meddled(KeyValue):
    """Somebody writes between a reading and the first writes that follow from it."""

    meddling = 0

    async def update(self, key: str, value: bytes, revision: int) -> int:
        if self.meddling:
            self.meddling -= 1
            await self.put(key, b"from elsewhere")
        return await super().update(key, value, revision)


@pytest.mark.parametrize("times", range(TRIES + 1))
async def test_a_write_from_elsewhere_in_between_is_never_overwritten_blindly(
    autojump_clock: MockClock, times: int
) -> None:
    async with world() as made:
        await made.until(lambda: made.service.problems() == {})
        meddled = Meddled(made.bus, SHAPES["registry"].bucket)
        made.service.keeper._bucket = meddled
        await made.bucket("registry").put("port", b"tampered")
        meddled.meddling = times
        if times < TRIES:
            assert await made.service.keeper.reconcile() == 1
            assert await made.content() == wanted()
        else:
            with pytest.raises(RegistryError, match="others wrote the registry while it was read, 3 times"):
                await made.service.keeper.reconcile()
            assert (await made.content())["port"] == b"from elsewhere"


async def test_a_conflict_is_a_conflict(autojump_clock: MockClock) -> None:
    async with world() as made:
        await made.until(lambda: made.service.problems() == {})
        bucket = made.bucket("registry")
        with pytest.raises(RevisionConflict):
            await bucket.delete("port", 1)


async def test_a_bucket_that_is_too_large_is_unavailable_until_it_is_small_again(autojump_clock: MockClock) -> None:
    broker = MemoryBroker()
    MemoryStreams(broker)
    store = KeyValue(broker.connect(), APPLIED.bucket)
    await store.create_bucket()
    for number in range(20):
        await store.put(f"n{number}.app", b"1" * 100)
    mirror = Mirror(APPLIED, store, max_bytes=3000, max_keys=30)
    async with trio.open_nursery() as nursery:
        await nursery.start(mirror.run)
        assert len((await mirror.read()).rows) == 20
        await store.put("n0.big", b"1" * 5000)
        for _ in range(3):
            with pytest.raises(RegistryError, match="more than this service takes, 3000 bytes in 30 keys"):
                await mirror.read()
            await trio.sleep(10)
        await store.delete("n0.big")
        while mirror.problem:
            await trio.sleep(1)
        assert len((await mirror.read()).rows) == 20
        for number in range(40):
            await store.put("n1.app", b"2")
            await store.put(f"m{number}.app", b"1")
            await store.delete(f"m{number}.app")
        with pytest.raises(RegistryError, match="more than"):
            await mirror.read()
        nursery.cancel_scope.cancel()


async def test_a_slow_bucket_does_not_hold_up_the_others(autojump_clock: MockClock) -> None:
    async with world() as made:
        await made.until(lambda: made.service.problems() == {})
        made.broker.faults.append(delaying("$JS.API.STREAM.INFO.KV_mesh-provisioner_needs", 0.7))
        answered: dict[str, float] = {}

        async def question(what: str) -> None:
            started = trio.current_time()
            assert (await ask(made.theirs, what)).what == what
            answered[what] = trio.current_time() - started

        async with trio.open_nursery() as nursery:
            for what in ("needs", "applied", "collect", "registry"):
                nursery.start_soon(question, what)
        assert answered["needs"] >= 0.7
        assert max(answered[what] for what in ("applied", "collect", "registry")) < 0.1


@pytest.mark.parametrize("fault", ["silence", "dead watch", "gone", "off"])
async def test_an_error_comes_within_two_seconds(autojump_clock: MockClock, fault: str) -> None:
    async with world() as made:
        await made.until(lambda: made.service.problems() == {})
        if fault == "silence":
            made.broker.faults.append(dropping("$JS.API.STREAM.INFO.KV_mesh-provisioner_needs"))
        elif fault == "dead watch":
            made.broker.faults.append(dropping("$JS.API.CONSUMER.CREATE.KV_mesh-provisioner_needs"))
            made.streams.buckets["KV_mesh-provisioner_needs"].consumers.clear()
            await made.bucket("needs").put("n1.app.bound.db", b"1")
        elif fault == "gone":
            made.streams.buckets.clear()
        else:
            made.streams.stop()
        for _ in range(5):
            started = trio.current_time()
            with pytest.raises(RegistryError) as refused:
                await ask(made.theirs, "needs")
            assert refused.value.code == "unavailable"
            assert trio.current_time() - started < 2
            await trio.sleep(0.3)


async def test_what_is_open_when_it_stops_is_answered(autojump_clock: MockClock) -> None:
    answers: list[Any] = []
    asked = trio.Event()
    broker = MemoryBroker()
    theirs = broker.connect()
    async with (
        theirs.subscribe("answers", lambda message: answers.append(json.loads(message.data))),
        theirs.subscribe("$JS.API.STREAM.INFO.KV_mesh-provisioner_needs", lambda _: asked.set()),
    ):
        async with trio.open_nursery() as nursery:
            service = Service(broker.connect(), CollectorRegistry())

            async def run(task_status: Any) -> None:
                await service.run(task_status=task_status)

            await nursery.start(run)
            await trio.sleep(3)
            asked = trio.Event()
            theirs.publish(VERB, b'{"what":"needs"}', reply="answers")
            await asked.wait()
            assert answers == []
            nursery.cancel_scope.cancel()
        await theirs.flush()
    assert answers == [{"error": {"code": "unavailable", "message": "the service is stopping"}}]
    assert service.metrics.requests.labels("needs", "unavailable")._value.get() == 1


@pytest.mark.parametrize(("outage", "answered"), [(1.0, True), (5.0, False)])
async def test_an_answer_waits_for_a_connection_that_comes_back(
    autojump_clock: MockClock, outage: float, answered: bool
) -> None:
    async with world() as made:
        await made.until(lambda: made.service.problems() == {})
        made.broker.faults.append(delaying("$JS.API.STREAM.INFO.KV_mesh-provisioner_needs", 0.3, times=1))
        answers: list[Any] = []
        async with made.theirs.subscribe("answers", lambda message: answers.append(json.loads(message.data))):
            made.theirs.publish(VERB, b'{"what":"needs"}', reply="answers")
            await trio.sleep(0.1)
            made.bus.disconnect("cable cut")
            await trio.sleep(outage)
            assert answers == []
            made.bus.reconnect()
            await trio.sleep(10)
            assert [answer["error"]["code"] for answer in answers] == ["unavailable"] * answered
            assert made.service.metrics.ignored.labels("not_sent")._value.get() == (not answered)
            assert (await ask(made.theirs, "needs")).items == []


async def test_too_many_questions_at_once_are_told_so_at_once(autojump_clock: MockClock) -> None:
    async with world() as made:
        await made.until(lambda: made.service.problems() == {})
        made.broker.faults.append(delaying("$JS.API.STREAM.INFO.KV_mesh-provisioner_needs", 0.5))
        answers: list[Any] = []
        async with made.theirs.subscribe("answers", lambda message: answers.append(json.loads(message.data))):
            for _ in range(1200):
                made.theirs.publish(VERB, b'{"what":"needs"}', reply="answers")
            await trio.sleep(0.2)
            assert len(answers) == 200
            assert {answer["error"]["code"] for answer in answers} == {"unavailable"}
            await trio.sleep(1)
            assert len(answers) == 1200
            assert sum("items" in answer for answer in answers) == 1000


async def test_a_log_line_for_each_change_of_state_and_no_more(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "provisioner.registry"):
        async with world() as made:
            await made.until(lambda: made.service.problems() == {})
            caplog.clear()
            bucket = made.streams.buckets.pop("KV_mesh-provisioner_needs")
            await trio.sleep(100)
            made.streams.buckets["KV_mesh-provisioner_needs"] = bucket
            await trio.sleep(100)
            lines = [record.getMessage() for record in caplog.records if "needs" in record.getMessage()]
            assert len(lines) <= 5, lines
            assert lines[-1] == "Bucket mesh-provisioner_needs is available"
