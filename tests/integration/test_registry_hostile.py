"""A node that means harm, within its own narrow grant: it can spoil its own keys, and nobody else's day."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from tests.integration.mesh import GENEROUS, PASSWORDS, Mesh, served


@asynccontextmanager
async def wire(made: Mesh, name: str) -> AsyncIterator[trio.SocketStream]:
    """A connection that checks nothing of what it sends."""
    stream = await trio.open_tcp_stream("127.0.0.1", made.server.port)
    async with stream:
        hello = {"verbose": False, "headers": True, "user": name, "pass": PASSWORDS[name]}
        await stream.send_all(b"CONNECT " + json.dumps(hello).encode() + b"\r\n")
        yield stream


async def publish(made: Mesh, subject: bytes, data: bytes, headers: bytes = b"", account: str = "n1-client") -> None:
    """Publishes, by default as node n1's client, and returns when the server has taken it."""
    async with wire(made, account) as stream:
        if headers:
            head = b"NATS/1.0" + headers + b"\r\n\r\n"
            line = b"HPUB %b %d %d\r\n%b%b\r\n" % (subject, len(head), len(head) + len(data), head, data)
        else:
            line = b"PUB %b %d\r\n%b\r\n" % (subject, len(data), data)
        await stream.send_all(line + b"PING\r\n")
        answer = b""
        with trio.fail_after(GENEROUS):
            while not answer.endswith(b"PONG\r\n"):
                answer += await stream.receive_some(4096)


async def test_keys_that_are_no_text_are_told_and_hide_nothing(tmp_path: Path) -> None:
    async with served(tmp_path) as (made, service):
        await made.bucket("collect").put("n2.hosts.dns", b"1")
        await publish(made, b"$KV.mesh-provisioner_collect.n1.\xff\xfe", b"1")
        # What might pass for the same once it is written as text.
        await publish(made, rb"$KV.mesh-provisioner_collect.n1.\xff\xfe", b"1")
        await publish(made, "$KV.mesh-provisioner_collect.n1.ÿþ".encode(), b"1")
        await publish(made, b"$KV.mesh-provisioner_collect.n1.\x01.\x7f", b"1")
        page = await made.ask("collect")
        assert [item["key"] for item in page.items] == ["n2.hosts.dns"]
        assert {row["key"] for row in page.bad_keys} == {
            "n1.ÿþ (not UTF-8)",
            "n1.ÿþ",
            r"n1.\xff\xfe",
            "n1.\x01.\x7f",
        }
        assert page.bad_keys_total == 4
        assert service.problems() == {}


async def test_strays_of_the_registry_that_nobody_can_name(tmp_path: Path) -> None:
    async with served(tmp_path) as (made, service):
        for key in (b"\xff\xfe", b"\x01", "ÿ".encode(), b"a:b"):
            await publish(made, b"$KV.mesh-provisioner_registry." + key, b"1", account="controller")
        assert await service.keeper.reconcile() == 2
        page = await made.ask()
        assert len(page.items) == 13
        # What can't be deleted is told in every answer, and stops nothing.
        assert {row["key"] for row in page.bad_keys} == {"ÿþ (not UTF-8)", "\x01"}
        assert await service.keeper.reconcile() == 0


async def test_headers_that_are_no_text_or_speak_for_the_server(tmp_path: Path) -> None:
    async with served(tmp_path) as (made, service):
        epoch = made.client.epoch
        for number, headers in enumerate(
            (
                b" 100\r\nNats-Last-Consumer: 999\r\nNats-Consumer-Stalled: $KV.mesh-provisioner_registry.port",
                b" 503",
                b"\r\nStatus: 100\r\nNats-Consumer-Stalled: $KV.mesh-provisioner_registry.port",
                b"\r\n\xff\xfe: \xff",
                b"\r\nnonsense",
                b" \xff\xff\xff",
                b"\r\nNats-Marker-Reason: MaxAge",
            )
        ):
            await publish(made, b"$KV.mesh-provisioner_applied.n1.app%d" % number, b"1", headers)
            await made.bucket("applied").put("n2.app", b"%d" % number)
            assert [item["value"] for item in (await made.ask("applied", node="n2")).items] == [number]
        assert len((await made.ask()).items) == 13
        assert (await made.ask("applied")).bad_keys == []
        assert made.client.epoch == epoch
        assert service.problems() == {}


async def test_one_nodes_roll_up_can_not_take_away_the_keys_of_others(tmp_path: Path) -> None:
    async with served(tmp_path) as (made, _):
        await made.bucket("needs").put("n2.app.bound.db", b"1")
        await publish(made, b"$KV.mesh-provisioner_needs.n1.app.bound.db", b"1", b"\r\nNats-Rollup: all")
        assert [item["key"] for item in (await made.ask("needs")).items] == ["n2.app.bound.db"]


async def test_a_bucket_that_allows_roll_ups_is_still_told_as_it_is(tmp_path: Path) -> None:
    async with served(tmp_path) as (made, _):
        bucket = made.bucket("needs")
        config = (await bucket.api(f"STREAM.INFO.{bucket.stream}"))["config"]
        await bucket.api(f"STREAM.UPDATE.{bucket.stream}", {**config, "allow_rollup_hdrs": True})
        for number in range(5):
            await bucket.put(f"n{number}.app.bound.db", b"1")
        assert len((await made.ask("needs")).items) == 5
        await publish(made, b"$KV.mesh-provisioner_needs.n1.app.bound.db", b"2", b"\r\nNats-Rollup: all")
        page = await made.until_answered("needs")
        assert [(item["key"], item["value"]) for item in page.items] == [("n1.app.bound.db", 2)]


async def test_a_stored_status_is_no_status_of_the_service(tmp_path: Path) -> None:
    async with served(tmp_path) as (made, _):
        await publish(made, b"$KV.mesh-provisioner_applied.n1.app", b"7", b" 503")
        assert [item["value"] for item in (await made.ask("applied")).items] == [7]
        entry = await made.bucket("applied").get("n1.app")
        assert entry is not None
        assert entry.value == b"7"
