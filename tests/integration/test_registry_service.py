"""The service on a real nats-server: it keeps the registry, and answers each question exactly once (mesh B5, B6)."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from provisioner.bus.interface import Message
from provisioner.errors import BadReply, NoResponders, RegistryError
from provisioner.registry.answer import MAX_REQUEST
from provisioner.registry.client import VERB, NodeClient, ask_pages
from provisioner.registry.keys import SHAPES
from provisioner.registry.table import TABLE, Bucket, Verb, wanted
from tests.integration.mesh import GENEROUS, Mesh, mesh, revisions, running, served, until_ready

# --- the registry ---


async def test_an_empty_bucket_is_filled_and_left_alone_afterwards(tmp_path: Path) -> None:
    async with served(tmp_path) as (made, service):
        before = await revisions(made)
        assert {key: entry.value for key, entry in (await made.bucket("registry").entries()).items()} == wanted()
        assert len(before) == 13
        assert await service.keeper.reconcile() == 0
        async with made.account("mesh-provisioner") as bus, running(bus) as second:
            await until_ready(second)
        assert await revisions(made) == before


async def test_what_differs_is_put_right_and_nothing_else_is_written(tmp_path: Path) -> None:
    async with served(tmp_path) as (made, service):
        before = await revisions(made)
        await made.store("registry", "port", b"tampered")
        await made.store("registry", "seat", b"")
        await made.bucket("registry").delete("dir")
        for stray in ("retired", "n1.app", "shell:zsh", "a.*", "a.b", ">"):
            await made.store("registry", stray, b'{"kind":"retired"}')
        assert await service.keeper.reconcile() == 3 + 6
        assert {key: entry.value for key, entry in (await made.bucket("registry").entries()).items()} == wanted()
        after = await revisions(made)
        assert {key for key in after if after[key] != before[key]} == {"port", "seat", "dir"}
        assert await service.keeper.reconcile() == 0


async def test_two_instances_at_once_write_the_right_content_and_no_more(tmp_path: Path) -> None:
    async with mesh(tmp_path) as made:
        await made.store("registry", "retired", b"x")
        await made.store("registry", "port", b"tampered")
        async with (
            made.account("mesh-provisioner") as one,
            made.account("mesh-provisioner") as two,
            running(one) as first,
            running(two) as second,
        ):
            await until_ready(first)
            await until_ready(second)
            assert {key: entry.value for key, entry in (await made.bucket("registry").entries()).items()} == wanted()
            # Two stray writes, 12 creations, one update, one deletion: each done once, by whichever came first.
            assert (await made.bucket("registry").status()).last_sequence == 2 + 14
            assert len((await made.ask()).items) == 13


async def test_a_question_at_roll_over_gets_one_answer(tmp_path: Path) -> None:
    async with (
        mesh(tmp_path) as made,
        made.account("mesh-provisioner") as one,
        made.account("mesh-provisioner") as two,
        running(one) as first,
        running(two) as second,
    ):
        await until_ready(first)
        await until_ready(second)
        answers = Answers(made)
        async with answers.listening():
            for _ in range(20):
                answers.ask(b"")
            await answers.all()
        assert all(len(found) == 1 for found in answers.found.values())


async def test_without_the_buckets_it_says_so_and_makes_them_when_told_to(tmp_path: Path) -> None:
    async with mesh(tmp_path, buckets=False) as made:
        async with made.account("mesh-provisioner") as bus, running(bus) as service:
            for what, shape in SHAPES.items():
                with pytest.raises(RegistryError, match=f"{shape.bucket} is not available") as refused:
                    await made.ask(what)
                assert refused.value.code == "unavailable"
            assert "mesh-provisioner_needs" in service.problems()
            await made.make_buckets()
            await until_ready(service)
            assert len((await made.ask()).items) == 13
        for what in SHAPES:
            await made.delete_bucket(what)
        async with running(made.controller, create_buckets=True) as service:
            await until_ready(service)
            status = await made.bucket("needs").status()
            assert (status.history, status.ttl) == (1, 0)


# --- what is asked ---

CONTENT = {
    "needs": {"n1.app.bound.db=3Amain": b'{"a":1}', "n2.app.port.web": b"2", "n1.web.port.http": b"3"},
    "applied": {"n1.app": b'{"version":"1"}', "n2=2Eexample=2Enet.app": b"null"},
    "collect": {"n1.shell=3Azsh=3Anormal.zshmod": b'{"order":10}', "n2.shell=3Azsh=3Anormal.zshmod": b"2",
                "n1.hosts.dns": b"3", "n10.hosts.dns": b"4"},
}  # fmt: skip
BAD = {
    "needs": ["n1", "n1.app.bound", "n1.app.bound.a.b", "n1.a:b.c.d"],
    "applied": ["n1", "n1.a.b", "n1.=41"],
    "collect": ["shell:zsh", "a.*", "n1.hosts.=3a"],
}


async def fill(made: Mesh) -> None:
    for what, content in CONTENT.items():
        for key, value in content.items():
            await made.bucket(what).put(key, value)
        for key in BAD[what]:
            await made.store(what, key, b"1")
    await made.store("applied", "n3.empty", b"")
    await made.store("applied", "n3.nonsense", b"{nope")


def keys(rows: list[dict[str, Any]]) -> list[str]:
    return [row["key"] for row in rows]


async def test_each_question_and_each_narrowing(tmp_path: Path) -> None:
    async with served(tmp_path) as (made, _):
        await fill(made)
        for narrowing, what, expected in (
            ({}, "needs", sorted(CONTENT["needs"])),
            ({"node": "n1"}, "needs", ["n1.app.bound.db=3Amain", "n1.web.port.http"]),
            ({"module": "app"}, "needs", ["n1.app.bound.db=3Amain", "n2.app.port.web"]),
            ({"node": "n2.example.net"}, "applied", ["n2=2Eexample=2Enet.app"]),
            ({"node": "n2=2Eexample=2Enet"}, "applied", []),
            ({"module": "app"}, "applied", sorted(CONTENT["applied"])),
            ({"node": "n1"}, "collect", ["n1.hosts.dns", "n1.shell=3Azsh=3Anormal.zshmod"]),
            ({"collection": "hosts"}, "collect", ["n1.hosts.dns", "n10.hosts.dns"]),
            ({"collection": "shell:zsh:normal", "node": "n2"}, "collect", ["n2.shell=3Azsh=3Anormal.zshmod"]),
            ({"module": "dns", "node": "n10"}, "collect", ["n10.hosts.dns"]),
            ({"module": "nobody"}, "collect", []),
        ):  # fmt: skip
            page = await made.ask(what, **narrowing)
            assert keys(page.items) == expected, (what, narrowing)
            # Whatever was asked, keys out of shape are told.
            assert sorted(keys(page.bad_keys)) == sorted(BAD[what])
            assert page.bad_keys_total == len(BAD[what])
            assert page.sequence == (await made.bucket(what).status()).last_sequence
        assert [item["value"] for item in (await made.ask("applied")).items] == [{"version": "1"}, None]
        bad_values = (await made.ask("applied", node="n3")).bad_values
        assert [(row["key"], row["why"].split(":")[0]) for row in bad_values] == [
            ("n3.empty", "empty"),
            ("n3.nonsense", "not JSON"),
        ]
        assert (await made.ask("applied", node="n1")).bad_values == []


async def test_the_registry_is_the_default(tmp_path: Path) -> None:
    async with served(tmp_path) as (made, _):
        for data in (b"", b"{}", b'{"what":"registry"}'):
            page = await made.raw(data)
            assert page.what == "registry"
            assert {item["kind"]: item["value"] for item in page.items} == {
                kind: json.loads(value) for kind, value in wanted().items()
            }


async def test_a_write_is_seen_by_the_next_question(tmp_path: Path) -> None:
    async with served(tmp_path) as (made, _):
        node = NodeClient(made.client, "n1")
        for number in range(200):
            await node.put_applied("app", number)
            page = await made.ask("applied", node="n1")
            assert [item["value"] for item in page.items] == [number]
        await node.delete_applied("app")
        assert (await made.ask("applied")).items == []


async def test_asked_while_it_is_being_written_as_fast_as_can_be(tmp_path: Path) -> None:
    async with served(tmp_path) as (made, _), trio.open_nursery() as nursery:
        written = 0

        async def write() -> None:
            nonlocal written
            while True:
                for number in range(100):
                    made.controller.publish(f"$KV.mesh-provisioner_applied.n{number % 7}.app", b"%d" % written)
                    written += 1
                await made.controller.flush(GENEROUS)

        nursery.start_soon(write)
        sequences = []
        for _ in range(50):
            page = await made.ask("applied")
            sequences.append(page.sequence)
            assert all(item["revision"] <= written for item in page.items)
        nursery.cancel_scope.cancel()
    assert sequences == sorted(sequences)
    assert sequences[-1] > sequences[0]


async def test_nobody_is_told_at_once_when_there_is_no_service(tmp_path: Path) -> None:
    async with mesh(tmp_path) as made:
        with pytest.raises(NoResponders):
            await made.ask()


# --- the node's client ---


async def test_a_node_keeps_its_keys_and_writes_only_differences(tmp_path: Path) -> None:
    async with served(tmp_path) as (made, _):
        node = NodeClient(made.client, "n1")
        assert await node.put_need("app", "bound", "db:main", {"b": 1, "a": [None]})
        assert not await node.put_need("app", "bound", "db:main", {"a": [None], "b": 1})
        assert await node.put_item("shell:zsh:normal", "zshmod", {"order": 10})
        assert await node.put_item("shell:zsh:normal", "zshmod", {"order": 11})
        assert await node.put_applied("app", "1.2")
        assert (await made.ask("needs")).items[0]["name"] == "db:main"
        assert [item["value"] for item in (await made.ask("collect")).items] == [{"order": 11}]
        assert (await made.bucket("collect").status()).last_sequence == 2
        assert await node.delete_need("app", "bound", "db:main")
        assert not await node.delete_need("app", "bound", "db:main")
        assert await node.delete_item("shell:zsh:normal", "zshmod")
        assert await node.delete_applied("app")
        for what in ("needs", "applied", "collect"):
            assert (await made.ask(what)).items == []
        assert await node.put_applied("app", "1.3")  # over the mark that the deletion left


async def test_a_node_may_not_store_what_readers_could_not_take(tmp_path: Path) -> None:
    async with served(tmp_path) as (made, _):
        node = NodeClient(made.client, "n1")
        deep: list[Any] = []
        for _ in range(100):
            deep = [deep]
        for value in (deep, float("nan"), float("inf"), "\ud800"):
            with pytest.raises(ValueError):
                await node.put_applied("app", value)
        with pytest.raises(ValueError, match="can't be empty"):
            await node.put_applied("", 1)
        assert (await made.bucket("applied").status()).values == 0


async def test_a_kind_is_resolved_by_the_registry(tmp_path: Path) -> None:
    async with served(tmp_path) as (made, _):
        node = NodeClient(made.client, "n1")
        for kind in TABLE:
            assert await node.resolve(kind.kind) == kind
        shell, secret = await node.resolve("shell"), await node.resolve("secret")
        assert shell is not None
        assert isinstance(shell.source, Bucket)
        located = shell.source.locate(node="n1", name="zsh:normal", contributor="zshmod")
        assert located == ("mesh-provisioner_collect", "n1.shell=3Azsh=3Anormal.zshmod")
        assert secret is not None
        assert isinstance(secret.source, Verb)
        assert await node.resolve("retired") is None
        await made.store("registry", "port", b"{}")
        with pytest.raises(BadReply, match='answer for "port" can\'t be read'):
            await node.resolve("port")
        await made.store("registry", "port", wanted()["seat"])
        with pytest.raises(BadReply, match='answer for "port" is about "seat"'):
            await node.resolve("port")


# --- exactly one answer ---


class Answers:
    """Asks with reply subjects of its own and counts what comes to each."""

    def __init__(self, made: Mesh) -> None:
        self._bus = made.client
        self._inbox = made.client.new_inbox()
        self._news = trio.Event()
        self.found: dict[str, list[Any]] = {}

    def listening(self) -> Any:
        return self._bus.subscribe(f"{self._inbox}.*", self._take)

    def _take(self, message: Message) -> None:
        self.found[message.subject].append(json.loads(message.data))
        self._news.set()

    def ask(self, data: bytes) -> str:
        reply = f"{self._inbox}.{len(self.found)}"
        self.found[reply] = []
        self._bus.publish(VERB, data, reply=reply)
        return reply

    async def all(self) -> None:
        """Waits until each has an answer, and long enough that a second one would have come: another round trip."""
        with trio.fail_after(GENEROUS):
            while not all(self.found.values()):
                self._news = trio.Event()
                await self._news.wait()
        last = self.ask(b"{}")
        with trio.fail_after(GENEROUS):
            while not self.found[last]:
                self._news = trio.Event()
                await self._news.wait()
        await self._bus.flush()


HOSTILE = (
    b"nonsense", b"[]", b'"registry"', b"\xff\xfe", b"\0", b"{" * 5000, b"[" * 30000, b'{"what":"x"}',
    b'{"bucket":"../KV_x","key":"k"}', b'{"what":"$KV.x"}', b'{"what":"needs","node":"$KV.>"}',
    b'{"what":"needs","node":"*"}', b'{"what":"needs","node":">"}', b'{"what":"needs","node":"a..b"}',
    b'{"what":"needs","node":" "}', b'{"what":"needs","node":""}', b'{"what":"needs","node":"' + b"x" * 1000 + b'"}',
    b'{"what":"needs","after":"' + b"\\u0000" * 900 + b'"}', b'{"what":"needs","node":1e999}', b"1" * 5000,
    b"{" + b" " * MAX_REQUEST + b"}", b'{"what":"' + b"x" * 1_000_000 + b'"}',
)  # fmt: skip


async def test_hostile_questions_get_one_well_formed_answer_each_and_change_nothing(tmp_path: Path) -> None:
    async with served(tmp_path) as (made, service):
        before = [(await made.bucket(what).status()).last_sequence for what in SHAPES]
        answers = Answers(made)
        async with answers.listening():
            for data in HOSTILE:
                answers.ask(data)
            await answers.all()
        for found in answers.found.values():
            assert len(found) == 1
            assert found[0].keys() in ({"error"}, set(found[0]) | {"items"})
            if "error" in found[0]:
                assert found[0]["error"].keys() == {"code", "message"}
                assert found[0]["error"]["code"] == "bad_request"
                assert len(found[0]["error"]["message"]) < 600
        assert [(await made.bucket(what).status()).last_sequence for what in SHAPES] == before
        assert service.problems() == {}


async def test_any_bytes_get_exactly_one_answer(tmp_path: Path) -> None:
    texts = st.binary(max_size=60) | st.dictionaries(
        st.sampled_from(["what", "node", "module", "collection", "after", "x"]),
        st.sampled_from(["needs", "collect", "n1", "", "é", 1, None, []]),
    ).map(lambda asked: json.dumps(asked).encode())  # fmt: skip
    collected: list[bytes] = []

    @settings(max_examples=300, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(texts)
    def collect(data: bytes) -> None:
        collected.append(data)

    collect()
    async with served(tmp_path) as (made, _):
        answers = Answers(made)
        async with answers.listening():
            for data in collected:
                answers.ask(data)
            await answers.all()
        assert len(answers.found) > 200
        assert {len(found) for found in answers.found.values()} == {1}
        for found in answers.found.values():
            assert "items" in found[0] or found[0]["error"]["code"] == "bad_request"


@pytest.mark.parametrize("reply", ["$KV.mesh-provisioner_registry.port", "$JS.API.STREAM.DELETE.KV_x", VERB])
async def test_an_answer_is_not_sent_where_it_would_do_harm(
    tmp_path: Path, reply: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(tmp_path) as (made, service):
        before = await revisions(made)
        made.controller.publish(VERB, b"", reply=reply)
        made.controller.publish(VERB, b"")  # a question to which nobody wants an answer
        assert len((await made.raw(b"")).items) == 13
        assert await revisions(made) == before
        with caplog.at_level(logging.WARNING):
            assert service.metrics.ignored.labels("reply_subject")._value.get() == 1
        assert service.metrics.ignored.labels("no_reply_subject")._value.get() == 1


async def test_a_failure_within_is_an_answer_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with served(tmp_path) as (made, service):
        del service.mirrors["needs"]  # as a bug would
        with pytest.raises(RegistryError, match="the service failed") as refused:
            await made.ask("needs")
        assert refused.value.code == "internal"
        assert "Traceback" not in str(refused.value)
        assert len((await made.ask()).items) == 13
        assert [record.exc_info is not None for record in caplog.records if record.levelname == "ERROR"] == [True]
        assert service.metrics.requests.labels("needs", "internal")._value.get() == 1


async def test_what_is_open_when_it_stops_is_answered(tmp_path: Path) -> None:
    async with mesh(tmp_path) as made, made.account("mesh-provisioner") as bus:
        await made.delete_bucket("needs")
        answers = Answers(made)
        async with answers.listening(), running(bus):
            reply = answers.ask(b'{"what":"needs"}')
            await made.client.flush()
            await bus.flush()
        # The question has reached the service, whose nursery is gone by now.
        with trio.fail_after(GENEROUS):
            async with answers.listening():
                pass
        await made.client.flush()
        assert len(answers.found[reply]) <= 1


# --- pages ---


async def test_an_answer_over_the_limit_is_paged_without_loss(tmp_path: Path) -> None:
    async with served(tmp_path) as (made, _):
        for number in range(300):
            await made.bucket("collect").put(f"n{number}.c.m", b'"' + b"v" * 8000 + b'"')
        pages = [page async for page in ask_pages(made.client, "collect", timeout=GENEROUS)]
        assert len(pages) == 3
        assert len({item["key"] for page in pages for item in page.items}) == 300
        assert len((await made.ask("collect")).items) == 300


async def test_a_server_with_a_small_limit_is_served_and_goes_on_being_served(tmp_path: Path) -> None:
    async with served(tmp_path, config="max_payload: 64KB\n") as (made, _):
        for number in range(100):
            await made.bucket("collect").put(f"n{number}.c.m", b'"' + b"v" * 2000 + b'"')
        await made.bucket("applied").put("n1.app", b'"' + b"v" * 65_400 + b'"')
        epoch = made.client.epoch
        assert len((await made.ask("collect")).items) == 100
        big = (await made.ask("applied")).bad_values
        assert [(row["key"], row["why"]) for row in big] == [("n1.app", "65402 bytes, too large for an answer")]
        assert made.client.epoch == epoch


async def test_two_hundred_questions_at_once_are_each_answered(tmp_path: Path) -> None:
    async with served(tmp_path) as (made, _):
        await fill(made)
        answers = Answers(made)
        async with answers.listening():
            for number in range(200):
                answers.ask(json.dumps({"what": "collect", "node": f"n{number % 3}"}).encode())
            await answers.all()
        assert {len(found) for found in answers.found.values()} == {1}
        assert all("items" in found[0] for found in answers.found.values())


async def test_a_slow_bucket_does_not_hold_up_the_others(tmp_path: Path) -> None:
    async with served(tmp_path) as (made, _):
        await made.delete_bucket("needs")
        answers = Answers(made)
        async with answers.listening():
            slow = [answers.ask(b'{"what":"needs"}') for _ in range(50)]
            quick = [answers.ask(b'{"what":"applied"}') for _ in range(50)]
            await answers.all()
        assert {len(found) for found in answers.found.values()} == {1}
        assert {answers.found[reply][0]["error"]["code"] for reply in slow} == {"unavailable"}
        assert all("items" in answers.found[reply][0] for reply in quick)
