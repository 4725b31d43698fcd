"""Campaigns on a bus in memory, against a store that behaves as the recorded one, under a jumping clock."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
import trio
from attrs import define, field
from trio.testing import MockClock

from provisioner.bus.interface import Message
from provisioner.bus.memory import MemoryBroker, MemoryBus, delaying
from provisioner.leader import election
from provisioner.leader.campaign import Campaign
from provisioner.leader.term import Term

TTL = 60.0


@define
class Store:
    """The bucket of a Choria broker: one key that expires, create and compare-and-set."""

    bus: MemoryBus
    there: bool = True
    silent: bool = False
    seq: int = 0
    value: bytes | None = None
    written: float = 0.0
    writes: list[tuple[int, bytes, dict[str, str]]] = field(factory=list)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        async with (
            self.bus.subscribe(election.info_subject(election.CHORIA_API), self.info),
            self.bus.subscribe(f"choria.streams.$KV.{election.BUCKET}.provisioner", self.write),
        ):
            yield

    def holder(self) -> bytes | None:
        if self.value is not None and trio.current_time() - self.written >= TTL:
            self.value = None
        return self.value

    def answer(self, message: Message, answer: dict[str, object]) -> None:
        if not self.silent:
            self.bus.publish(message.reply, json.dumps(answer).encode())

    def info(self, message: Message) -> None:
        if self.there:
            self.answer(message, {"config": {"max_age": int(TTL * 1e9)}, "created": "once"})
        else:
            self.answer(message, {"error": {"code": 404, "err_code": 10059, "description": "stream not found"}})

    def write(self, message: Message) -> None:
        if not self.there:
            self.answer(message, {"error": {"code": 404, "err_code": 10059}})
            return
        current = self.seq if self.holder() is not None else 0
        if int(message.headers[election.EXPECTED]) != current:
            self.answer(message, {"error": {"code": 400, "err_code": 10071, "description": f"wrong: {current}"}})
            return
        self.seq += 1
        self.value, self.written = message.data, trio.current_time()
        self.writes.append((self.seq, message.data, dict(message.headers)))
        self.answer(message, {"stream": election.STREAM, "seq": self.seq})


@define
class Candidate:
    """One instance: notes when its terms began and ended."""

    campaign: Campaign
    terms: list[list[float]] = field(factory=list)
    news: trio.Event = field(factory=trio.Event)
    scope: trio.CancelScope = field(factory=trio.CancelScope)

    async def run_term(self, term: Term) -> None:
        self.terms.append([trio.current_time()])
        self.tell()
        try:
            with term.scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(term.watch)
                    await trio.sleep_forever()
        finally:
            self.terms[-1].append(trio.current_time())
            self.tell()

    def tell(self) -> None:
        self.news.set()
        self.news = trio.Event()

    async def run(self) -> None:
        with self.scope:
            await self.campaign.hold_terms(self.run_term, lambda: None)

    async def leads(self, terms: int = 1) -> float:
        """Waits for the beginning of its ``terms``-th term."""
        with trio.fail_after(100_000):
            while len(self.terms) < terms:
                await self.news.wait()
        return self.terms[terms - 1][0]

    async def lost(self, terms: int = 1) -> float:
        with trio.fail_after(100_000):
            while len(self.terms) < terms or len(self.terms[terms - 1]) < 2:
                await self.news.wait()
        return self.terms[terms - 1][1]


def candidate(broker: MemoryBroker, name: str) -> tuple[Candidate, MemoryBus]:
    bus = broker.connect()
    return Candidate(Campaign(bus, name, clock=trio.current_time)), bus


@pytest.fixture
def store(broker: MemoryBroker) -> Store:
    return Store(broker.connect())


def overlap(*candidates: Candidate) -> bool:
    now = trio.current_time()
    spans = sorted((t[0], t[1] if len(t) > 1 else now) for c in candidates for t in c.terms)
    return any(a[1] > b[0] for a, b in pairwise(spans))


async def test_one_wins_and_renews_calmly(broker: MemoryBroker, store: Store, clock: MockClock) -> None:
    a, _ = candidate(broker, "a")
    b, _ = candidate(broker, "b")
    async with store.serving(), trio.open_nursery() as nursery:
        nursery.start_soon(a.run)
        await a.leads()
        nursery.start_soon(b.run)
        await trio.sleep(3600)
        assert len(a.terms) == 1
        assert b.terms == []
        assert (a.campaign.role, b.campaign.role) == ("leader", "standby")
        assert 290 <= len(store.writes) <= 302  # once in twelve seconds, not twice a second
        assert {value for _, value, _ in store.writes} == {b"a"}
        nursery.cancel_scope.cancel()


async def test_a_leader_that_dies_is_replaced_within_ttl_and_five_seconds(
    broker: MemoryBroker, store: Store, clock: MockClock
) -> None:
    a, a_bus = candidate(broker, "a")
    b, _ = candidate(broker, "b")
    async with store.serving(), trio.open_nursery() as nursery:
        nursery.start_soon(a.run)
        await a.leads()
        nursery.start_soon(b.run)
        await trio.sleep(100)
        a_bus.disconnect("killed")
        died = trio.current_time()
        began = await b.leads()
        assert began - died <= TTL + 5
        assert await a.lost() < began
        assert not overlap(a, b)
        nursery.cancel_scope.cancel()


async def test_a_leader_that_stops_politely_hands_over_at_once(
    broker: MemoryBroker, store: Store, clock: MockClock
) -> None:
    a, _ = candidate(broker, "a")
    others = [candidate(broker, name)[0] for name in "bcd"]
    async with store.serving(), trio.open_nursery() as nursery:
        nursery.start_soon(a.run)
        await a.leads()
        for other in others:
            nursery.start_soon(other.run)
        await trio.sleep(100)
        a.scope.cancel()
        stopped = await a.lost()
        await trio.sleep(2.9)
        winners = [other for other in others if other.terms]
        assert len(winners) == 1
        assert winners[0].terms[0][0] - stopped < 3
        assert store.writes[-2][2]["KV-Operation"] == "DEL"
        assert not overlap(a, *others)
        nursery.cancel_scope.cancel()


async def test_without_a_standby_no_marker_is_left(broker: MemoryBroker, store: Store, clock: MockClock) -> None:
    a, _ = candidate(broker, "a")
    async with store.serving(), trio.open_nursery() as nursery:
        nursery.start_soon(a.run)
        await a.leads()
        # It hears its own hand-over, and must not take itself for a standby.
        a.scope.cancel()
        await a.lost()
        await trio.sleep(5)
        assert all("KV-Operation" not in headers for _, _, headers in store.writes)


async def test_a_silent_store_ends_the_term_by_our_own_clock(
    broker: MemoryBroker, store: Store, clock: MockClock
) -> None:
    a, _ = candidate(broker, "a")
    async with store.serving(), trio.open_nursery() as nursery:
        nursery.start_soon(a.run)
        await a.leads()
        await trio.sleep(100)
        store.silent = True
        confirmed = store.written
        ended = await a.lost()
        assert ended - confirmed <= 0.9 * TTL + 0.01
        store.silent = False
        again = await a.leads(2)
        assert again - ended < TTL + 5
        nursery.cancel_scope.cancel()


async def test_an_answer_that_comes_after_the_key_expired_is_no_win(
    broker: MemoryBroker, store: Store, clock: MockClock
) -> None:
    """Every answer takes longer than it is awaited: nobody ever leads, and the store is not believed late."""
    broker.faults.append(delaying("_INBOX.>", 59.0))
    a, _ = candidate(broker, "a")
    async with store.serving(), trio.open_nursery() as nursery:
        nursery.start_soon(a.run)
        await trio.sleep(1000)
        assert a.terms == []
        assert a.campaign.role == "unknown"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("how", ["another wrote", "bucket deleted"])
async def test_a_definite_no_ends_the_term_at_the_next_renewal(
    broker: MemoryBroker, store: Store, clock: MockClock, how: str
) -> None:
    a, _ = candidate(broker, "a")
    async with store.serving(), trio.open_nursery() as nursery:
        nursery.start_soon(a.run)
        await a.leads()
        await trio.sleep(100)
        if how == "another wrote":
            store.seq += 1
            store.value, store.written = b"go", trio.current_time()
        else:
            store.there = False
        changed = trio.current_time()
        assert await a.lost() - changed <= 12.1
        store.there = True
        assert await a.leads(2) - changed <= TTL + 12.1 + 5
        nursery.cancel_scope.cancel()


async def test_the_key_deleted_twenty_times_under_a_single_instance(
    broker: MemoryBroker, store: Store, clock: MockClock
) -> None:
    a, _ = candidate(broker, "a")
    async with store.serving(), trio.open_nursery() as nursery:
        nursery.start_soon(a.run)
        for n in range(1, 21):
            await a.leads(n)
            await trio.sleep(20)
            store.value = None
            await a.lost(n)
        await a.leads(21)
        nursery.cancel_scope.cancel()


async def test_a_bucket_made_late_is_found_within_five_seconds(
    broker: MemoryBroker, store: Store, clock: MockClock
) -> None:
    store.there = False
    a, _ = candidate(broker, "a")
    async with store.serving(), trio.open_nursery() as nursery:
        nursery.start_soon(a.run)
        await trio.sleep(59)
        assert a.campaign.role == "unknown"
        store.there = True
        assert await a.leads() - 59 < 5
        nursery.cancel_scope.cancel()


async def test_a_candidate_in_the_manner_of_the_go_program_elects_along(
    broker: MemoryBroker, store: Store, clock: MockClock
) -> None:
    """It creates, then updates twice a second (recorded); when it dies ours leads, and the other way round."""
    go = broker.connect()
    a, a_bus = candidate(broker, "a")
    subject = f"choria.streams.$KV.{election.BUCKET}.provisioner"

    async def write(expected: int) -> int:
        answer = await go.request(subject, b"go", timeout=5, headers={election.EXPECTED: str(expected)})
        news, seq = election.read_write(answer.data)
        return seq if news is election.News.GRANTED else 0

    async with store.serving(), trio.open_nursery() as nursery:
        seq = await write(0)
        nursery.start_soon(a.run)
        for _ in range(400):
            await trio.sleep(0.5)
            seq = await write(seq)
            assert seq
        assert a.terms == []
        killed = store.written
        assert TTL <= await a.leads() - killed <= TTL + 5
        assert await write(0) == 0  # while ours leads
        a_bus.disconnect("killed")
        await trio.sleep(TTL + 1)
        assert await write(0)
        nursery.cancel_scope.cancel()
