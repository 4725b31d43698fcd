"""One signature for several servers that are asked the very same within a second, and where that ends."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import trio
from attrs import define, field
from prometheus_client import CollectorRegistry
from trio.testing import MockClock

from provisioner.bus.memory import MemoryBroker
from provisioner.choria.rpc import encode_rpc_reply
from provisioner.choria.v1 import V1
from provisioner.choria.wire import Request
from provisioner.cycle import calls
from provisioner.metrics import Metrics
from provisioner.rpc import Action, Caller, open_caller
from provisioner.testing import Answer, Refusal, ScriptedNode

NAMES = ("n1.example.net", "n2.example.net", "n3.example.net")
JWT = {"jwt": "x.y.z", "ecdh_public": "00"}
NOW = 1_700_000_000.0


@define
class CountingSigner:
    """Signs nothing, and counts."""

    credential: str = "insecure"
    signed: list[bytes] = field(factory=list)

    def sign(self, message: bytes) -> str:
        self.signed.append(message)
        return "insecure"


@define
class Site:
    """Three servers, and who asks them."""

    caller: Caller
    signer: CountingSigner
    nodes: dict[str, ScriptedNode]

    async def ask(self, name: str, action: Action = calls.JWT, *, at: float = NOW, **more: str) -> Request:
        """The last request that the server got."""
        with self.caller.conversation(name, clock=lambda: at) as talk:
            await talk.call(action, lambda: {"token": "s3cret"} | more, lambda found: found)
        return self.nodes[name].requests[-1]


@pytest.fixture
async def site(broker: MemoryBroker) -> AsyncIterator[Site]:
    signer = CountingSigner()
    nodes = {name: ScriptedNode(name, {"jwt": JWT}) for name in NAMES}
    async with AsyncExitStack() as stack:
        for node in nodes.values():
            await stack.enter_async_context(node.on(broker.connect()))
        caller = open_caller(
            broker.connect(),
            V1("choria=me", signer),
            sender="me",
            check=lambda: None,
            metrics=Metrics(CollectorRegistry(), "testing"),
        )
        yield Site(await stack.enter_async_context(caller), signer, nodes)


async def test_who_is_asked_the_same_within_a_second_shares_the_signed_request(site: Site) -> None:
    first, second, third = [await site.ask(name, at=NOW + 0.3 * n) for n, name in enumerate(NAMES)]
    assert len(site.signer.signed) == 1
    assert first.id == second.id == third.id
    assert [request.time_ns for request in (first, second, third)] == [1_700_000_000_000_000_000] * 3


async def test_each_server_has_a_reply_subject_that_no_other_can_guess(site: Site) -> None:
    requests = [await site.ask(name) for name in NAMES]
    last_parts = {request.reply_to.rpartition(".")[2] for request in requests}
    assert len(last_parts) == 3
    assert requests[0].id not in last_parts  # who knows the request does not know where another answers


async def test_the_next_second_has_a_request_of_its_own(site: Site) -> None:
    first = await site.ask(NAMES[0], at=NOW + 0.999)
    second = await site.ask(NAMES[1], at=NOW + 1)
    assert first.id != second.id
    assert len(site.signer.signed) == 2
    assert (first.time_ns, second.time_ns) == (1_700_000_000_000_000_000, 1_700_000_001_000_000_000)


async def test_a_clock_set_back_does_not_bring_an_old_request_back(site: Site) -> None:
    first = await site.ask(NAMES[0], at=NOW)
    earlier = await site.ask(NAMES[1], at=NOW - 3600)
    assert earlier.id != first.id
    assert earlier.time_ns == 1_699_996_400_000_000_000


async def test_other_words_are_another_request(site: Site) -> None:
    first = await site.ask(NAMES[0])
    other = await site.ask(NAMES[1], colour="blue")
    assert first.id != other.id


@pytest.mark.parametrize(
    ("action", "shared"),
    [
        (calls.JWT, True),
        (calls.INVENTORY, True),
        (calls.RESTART, True),
        (calls.GEN25519, False),
        (calls.GENCSR, False),
        (calls.CONFIGURE, False),
        (calls.SHUTDOWN, False),
        (calls.RELEASE_UPDATE, False),
    ],
    ids=lambda value: value.name if isinstance(value, Action) else "",
)
async def test_what_is_a_servers_own_is_never_shared(site: Site, action: Action, shared: bool) -> None:
    for node in site.nodes.values():
        node.answers |= {
            "gen25519": {"public_key": "00", "directory": "/d", "signature": "00"},
            "gencsr": {"csr": "c", "public_key": "p", "ssldir": "/ssl"},
        }
    first, second = [await site.ask(name, action) for name in NAMES[:2]]
    assert (first.id == second.id) == shared
    assert first.reply_to != second.reply_to


async def test_each_try_is_a_request_of_its_own(site: Site, clock: MockClock) -> None:
    """A new request id for each try, as the Go program has it (wire-protocol 5.6)."""
    answers: list[Answer] = [JWT, Refusal("not now")]
    site.nodes[NAMES[0]].answers["jwt"] = lambda data: answers.pop()
    await site.ask(NAMES[0])
    tries = site.nodes[NAMES[0]].requests
    assert len(tries) == 2
    assert tries[0].id != tries[1].id


async def test_an_answer_on_anothers_reply_subject_is_ignored(site: Site, clock: MockClock) -> None:
    """A server that knows the shared request and answers in another's name, where it was told to answer itself."""
    silent, forger = site.nodes[NAMES[0]], site.nodes[NAMES[1]]
    silent.answers["jwt"] = None
    answered: list[str] = []

    async def ask(name: str) -> None:
        await site.ask(name)
        answered.append(name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, NAMES[0])
        await silent.called("jwt")
        nursery.start_soon(ask, NAMES[1])
        await forger.called("jwt")
        assert forger.requests[0].id == silent.requests[0].id
        forger.reply(forger.requests[0], encode_rpc_reply("jwt", JWT | {"jwt": "forged"}), sender=NAMES[0])
        await trio.sleep(1)
        assert answered == [NAMES[1]]
        nursery.cancel_scope.cancel()
