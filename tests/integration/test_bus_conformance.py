"""What ``Bus`` promises, on both buses: the one in memory is a fake that must not lie."""

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from provisioner.bus.interface import Bus, Message
from provisioner.errors import ConnectionLost, NoReply, NoResponders, PermissionDenied, TooLarge
from tests.integration.buses import LIMIT, World, world_of


@pytest.fixture(params=["memory", "nats"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    async with world_of(request.param, tmp_path) as made:
        yield made


class Heard:
    """A handler that keeps what it hears, and can be waited for."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._more = trio.Event()

    def __call__(self, message: Message) -> None:
        self.messages.append(message)
        self._more.set()
        self._more = trio.Event()

    @property
    def data(self) -> list[bytes]:
        return [message.data for message in self.messages]

    async def count(self, wanted: int) -> None:
        with trio.fail_after(20):
            while len(self.messages) < wanted:
                await self._more.wait()


async def _settled(*buses: Bus) -> None:
    """All that was published has been handed over."""
    for bus in buses * 2:
        await bus.flush()


async def test_a_message_arrives_whole(world: World) -> None:
    heard = Heard()
    async with world.connect() as ours, world.connect() as theirs, ours.subscribe("a.b", heard):
        theirs.publish("a.b", b"\x00\xff", reply="r.1", headers={"Key": "a value", "Other": "é"})
        await heard.count(1)
        theirs.publish("a.b", b"")
        await heard.count(2)
    assert heard.messages == [
        Message("a.b", b"\x00\xff", "r.1", {"Key": "a value", "Other": "é"}),
        Message("a.b", b"", "", {}),
    ]


@pytest.mark.parametrize(
    ("pattern", "subject", "hears"),
    [
        ("a.*.c", "a.b.c", True),
        ("a.*.c", "a.b.d", False),
        ("a.*", "a.b.c", False),
        ("a.*", "a", False),
        ("a.>", "a.b.c", True),
        ("a.>", "a.b", True),
        ("a.>", "a", False),
        (">", "a.b", True),
        ("*", "a", True),
        ("*.>", "a", False),
        ("a.b", "A.b", False),
        ("a.*.>", "a.b.c.d", True),
    ],
)
async def test_patterns(world: World, pattern: str, subject: str, hears: bool) -> None:
    heard = Heard()
    async with world.connect() as bus, bus.subscribe(pattern, heard):
        bus.publish(subject, b"x")
        await _settled(bus)
    assert [message.subject for message in heard.messages] == ([subject] if hears else [])


async def test_each_subscription_hears_and_a_queue_group_shares(world: World) -> None:
    heard = [Heard() for _ in range(5)]
    async with world.connect() as one, world.connect() as two:
        async with (
            one.subscribe("q", heard[0]),
            one.subscribe("q", heard[1], queue="g"),
            two.subscribe("q", heard[2], queue="g"),
            two.subscribe("q", heard[3], queue="h"),
            two.subscribe("q", heard[4]),
        ):
            for number in range(200):
                one.publish("q", b"%d" % number)
            await _settled(one, two, one)
    everything = [b"%d" % number for number in range(200)]
    assert heard[0].data == heard[3].data == heard[4].data == everything
    assert sorted(heard[1].data + heard[2].data) == sorted(everything)
    assert heard[1].data
    assert heard[2].data


async def test_order_is_kept_across_subscriptions(world: World) -> None:
    heard = Heard()
    async with world.connect() as ours, world.connect() as theirs:
        async with ours.subscribe("a", heard), ours.subscribe("b", heard):
            for number in range(500):
                theirs.publish("a" if number % 3 else "b", b"%d" % number)
            await heard.count(500)
    assert heard.data == [b"%d" % number for number in range(500)]


async def test_a_message_is_never_handed_over_within_publish(world: World) -> None:
    heard = Heard()
    async with world.connect() as bus, bus.subscribe("a", heard):
        bus.publish("a", b"")
        assert not heard.messages
        await heard.count(1)


async def test_the_subscription_ends_with_its_context(world: World) -> None:
    heard = Heard()
    async with world.connect() as bus:
        async with bus.subscribe("a", heard):
            bus.publish("a", b"1")
            await heard.count(1)
        bus.publish("a", b"2")
        await _settled(bus)
    assert heard.data == [b"1"]


async def test_the_server_knows_the_subscription_on_entry(world: World) -> None:
    async with world.connect() as ours, world.connect() as theirs:
        for number in range(50):
            heard = Heard()
            async with ours.subscribe(f"a.{number}", heard):
                theirs.publish(f"a.{number}", b"")
                await heard.count(1)


async def test_ten_thousand_messages_are_all_handed_over(world: World) -> None:
    heard = Heard()
    body = b"x" * 237
    async with world.connect() as ours, world.connect() as theirs, ours.subscribe("burst.*", heard):
        for number in range(10_000):
            theirs.publish(f"burst.{number}", body)
        await heard.count(10_000)
    assert [message.subject for message in heard.messages] == [f"burst.{number}" for number in range(10_000)]


def _answer(bus: Bus, message: Message) -> None:
    bus.publish(message.reply, message.data.upper(), headers={"By": "us"})


async def test_request_and_reply(world: World) -> None:
    async with world.connect() as ours, world.connect() as theirs:
        async with theirs.subscribe("ask", partial(_answer, theirs)):
            reply = await ours.request("ask", b"hello", timeout=20, headers={"K": "v"})
            assert (reply.data, dict(reply.headers)) == (b"HELLO", {"By": "us"})

            answers: dict[int, bytes] = {}

            async def ask(number: int) -> None:
                answers[number] = (await ours.request("ask", b"n%d" % number, timeout=30)).data

            async with trio.open_nursery() as nursery:
                for number in range(500):
                    nursery.start_soon(ask, number)
            assert answers == {number: b"N%d" % number for number in range(500)}


async def test_only_the_first_answer_counts_and_a_late_one_is_nobodys(world: World) -> None:
    replies: list[str] = []

    async with world.connect() as ours, world.connect() as theirs:

        def twice(message: Message) -> None:
            replies.append(message.reply)
            theirs.publish(message.reply, b"first")
            theirs.publish(message.reply, b"second")

        async with theirs.subscribe("ask", twice):
            assert (await ours.request("ask", b"", timeout=20)).data == b"first"
            await _settled(theirs, ours)
            assert (await ours.request("ask", b"", timeout=20)).data == b"first"
        assert len(set(replies)) == 2


async def test_no_responders_and_no_reply(world: World) -> None:
    heard = Heard()
    async with world.connect() as ours, world.connect() as theirs:
        with trio.fail_after(20), pytest.raises(NoResponders, match=r"^nobody listens on ask\.nobody$"):
            await ours.request("ask.nobody", b"", timeout=60)
        async with theirs.subscribe("ask", heard):
            with pytest.raises(NoReply, match=r"^no answer on ask within 0\.1 s$"):
                await ours.request("ask", b"", timeout=0.1)


async def test_an_empty_reply_with_headers_is_an_answer(world: World) -> None:
    async with world.connect() as ours, world.connect() as theirs:

        def empty(message: Message) -> None:
            theirs.publish(message.reply, b"", headers={"Status-Of-Ours": "503"})

        async with theirs.subscribe("ask", empty):
            reply = await ours.request("ask", b"", timeout=20)
    assert reply.data == b""
    assert dict(reply.headers) == {"Status-Of-Ours": "503"}


async def test_a_cancelled_request_leaves_nothing_and_is_not_sent_in_a_cancelled_scope(world: World) -> None:
    heard = Heard()
    async with world.connect() as ours, world.connect() as theirs, theirs.subscribe("ask", heard):

        async def ask_and_give_up(scope: trio.CancelScope) -> None:
            with scope:
                await ours.request("ask", b"", timeout=60)

        for _ in range(1000):
            scope = trio.CancelScope()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask_and_give_up, scope)
                await trio.testing.wait_all_tasks_blocked(0.0)
                scope.cancel()
        assert _pending(ours) == 0
        await _settled(ours, theirs)
        assert len(heard.messages) == 1000

        with trio.CancelScope() as scope:
            scope.cancel()
            await ours.request("ask", b"", timeout=60)
        assert scope.cancelled_caught
        await _settled(ours, theirs)
        assert len(heard.messages) == 1000


def _pending(bus: Any) -> int:
    return int(bus.pending_requests)


@pytest.mark.parametrize(
    "what", [ValueError("mine"), OSError(9, "Bad file descriptor"), KeyError("x"), StopIteration()]
)
async def test_what_a_handler_raises_ends_nothing(
    world: World, what: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    heard = Heard()

    def fails(message: Message) -> None:
        raise what

    async with world.connect() as bus:
        async with bus.subscribe("a", fails), bus.subscribe("a", heard):
            bus.publish("a", b"1")
            bus.publish("a", b"2")
            await heard.count(2)
            await _settled(bus)
            epoch = bus.epoch
        assert bus.connected
        assert bus.epoch == epoch
    logged = [record for record in caplog.records if record.levelname == "ERROR"]
    assert [record.getMessage() for record in logged] == ["A message on a was not handled"] * 2
    assert logged[0].exc_info is not None
    assert logged[0].exc_info[1] is what


async def test_a_handler_may_publish_and_ask(world: World) -> None:
    heard = Heard()
    async with world.connect() as bus:

        def forward(message: Message) -> None:
            bus.publish("b", message.data + b"!")

        async with bus.subscribe("a", forward), bus.subscribe("b", heard):
            bus.publish("a", b"1")
            await heard.count(1)
    assert heard.data == [b"1!"]


@pytest.mark.parametrize(
    "subject", ["", "a b", "a..b", ".a", "a.", "a.*", "a.>", "a\r\nPUB x 0\r\n", "a\tb", "a\x00", "a*", ">a", "a\x7f"]
)
async def test_a_bad_subject_is_refused_and_not_sent(world: World, subject: str) -> None:
    async with world.connect() as bus:
        with pytest.raises(ValueError, match="not a subject"):
            bus.publish(subject, b"")
        with pytest.raises(ValueError, match="not a subject"):
            await bus.request(subject, b"", timeout=1)
        if subject:
            with pytest.raises(ValueError, match="not a subject"):
                bus.publish("good", b"", reply=subject)
        if "*" not in subject and ">" not in subject:
            with pytest.raises(ValueError, match="not a subject"):
                async with bus.subscribe(subject, Heard()):
                    pass
        await bus.flush()
        assert bus.connected


@pytest.mark.parametrize("subject", ["a*", "a.>.b", "*a", ">a"])
async def test_a_bad_pattern_is_refused(world: World, subject: str) -> None:
    async with world.connect() as bus:
        with pytest.raises(ValueError, match="wildcard"):
            async with bus.subscribe(subject, Heard()):
                pass


async def test_too_large_is_refused_before_it_is_sent(world: World) -> None:
    heard = Heard()
    async with world.connect() as bus, bus.subscribe("a", heard):
        assert bus.max_payload == LIMIT
        bus.publish("a", b"x" * LIMIT)
        with pytest.raises(TooLarge, match="65537 bytes to a: the server takes 65536"):
            bus.publish("a", b"x" * (LIMIT + 1))
        with pytest.raises(TooLarge):
            await bus.request("a", b"x" * (LIMIT + 1), timeout=1)
        # Headers count too: "NATS/1.0\r\n" + "K: v\r\n" + "\r\n" are 18 bytes.
        bus.publish("a", b"x" * (LIMIT - 18), headers={"K": "v"})
        with pytest.raises(TooLarge):
            bus.publish("a", b"x" * (LIMIT - 17), headers={"K": "v"})
        await _settled(bus)
        assert bus.connected
        assert bus.epoch == 1
    assert [len(data) for data in heard.data] == [LIMIT, LIMIT - 18]


async def test_what_the_server_refuses_is_told_as_such(world: World) -> None:
    heard = Heard()
    async with world.connect(bound=True) as bound, world.connect() as free:
        with trio.fail_after(20), pytest.raises(PermissionDenied, match=r'publish to "secret\.a"'):
            await bound.request("Secret.a", b"", timeout=60)
        with pytest.raises(PermissionDenied, match=r'subscription to "secret\.b"'):
            async with bound.subscribe("Secret.b", heard):
                pass
        bound.publish("Secret.c", b"")
        await bound.flush()
        await _settled(bound)
        assert 'publish to "secret.c"' in bound.last_error
        # The connection is none the worse for it.
        async with free.subscribe("ask", partial(_answer, free)):
            assert (await bound.request("ask", b"x", timeout=20)).data == b"X"
        assert bound.epoch == 1


async def test_of_two_subjects_in_different_case_only_the_refused_one_fails(world: World) -> None:
    async with world.connect(bound=True) as bound, world.connect() as free:
        results: dict[str, object] = {}

        async def ask(subject: str) -> None:
            try:
                results[subject] = (await bound.request(subject, b"x", timeout=2)).data
            except PermissionDenied:
                results[subject] = PermissionDenied

        async with free.subscribe("secret.a", partial(_answer, free)), trio.open_nursery() as nursery:
            nursery.start_soon(ask, "secret.a")
            nursery.start_soon(ask, "Secret.a")
    assert results == {"secret.a": b"X", "Secret.a": PermissionDenied}


async def test_an_outage(world: World) -> None:
    heard, lost = Heard(), Heard()
    async with world.connect() as ours, world.connect() as theirs, theirs.subscribe("hold", lost):
        async with ours.subscribe("a.>", heard):
            assert (ours.connected, ours.epoch) == (True, 1)

            async with trio.open_nursery() as nursery:

                async def waits() -> None:
                    with pytest.raises(ConnectionLost, match="no answer on hold"):
                        await ours.request("hold", b"", timeout=60)

                nursery.start_soon(waits)
                await lost.count(1)
                await world.cut()
            with trio.fail_after(20):
                while ours.connected or theirs.connected:
                    await trio.sleep(0.01)
            assert ours.last_error
            with pytest.raises(ConnectionLost):
                ours.publish("a.b", b"never sent")
            with pytest.raises(ConnectionLost):
                await ours.request("a.b", b"never sent", timeout=60)
            with pytest.raises(ConnectionLost):
                await ours.flush()

            late = Heard()
            async with trio.open_nursery() as nursery:

                async def subscribes_meanwhile() -> None:
                    async with ours.subscribe("late", late):
                        await theirs.wait_connected()
                        theirs.publish("late", b"")
                        await late.count(1)

                async def sees_it() -> None:
                    assert await ours.wait_epoch_change(1) == 2

                nursery.start_soon(subscribes_meanwhile)
                nursery.start_soon(sees_it)
                await world.heal()
                with trio.fail_after(20):
                    await ours.wait_connected()
                    await theirs.wait_connected()
            assert ours.last_error == ""
            assert (ours.connected, ours.epoch) == (True, 2)
            theirs.publish("a.b", b"after")
            await heard.count(1)
    assert heard.data == [b"after"]


async def test_flush_when_all_is_well_and_names(world: World) -> None:
    async with world.connect() as bus:
        await bus.flush()
        assert "://" in bus.url
        assert bus.last_error == ""
        assert await bus.wait_epoch_change(0) == 1


@pytest.mark.parametrize("header", ["a b", "a:b", "a\r\nb", "ü"])
async def test_a_bad_header_is_refused_and_not_sent(world: World, header: str) -> None:
    heard = Heard()
    async with world.connect() as bus, bus.subscribe("a", heard):
        with pytest.raises(ValueError, match="not a header"):
            bus.publish("a", b"", headers={header: "v"})
        bus.publish("a", b"", headers={"K": "v1\r\nInjected: v2"})
        await heard.count(1)
    assert dict(heard.messages[0].headers) == {"K": "v1  Injected: v2"}
