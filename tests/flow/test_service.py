"""The service as a whole: what ends it, and what its pages say of it."""

import json
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from provisioner import status
from provisioner.bus.memory import MemoryBroker
from provisioner.leader.lead import RunTerm, Unopposed
from provisioner.monitor import Request
from provisioner.testing import ScriptedHelper, ScriptedNode
from tests.flow.conftest import Running, Serve


class DyingLead(Unopposed):
    """Works for a while, then has a bug."""

    async def hold_terms(self, run_term: RunTerm, look_again: Callable[[], object]) -> None:
        with trio.move_on_after(10):
            await super().hold_terms(run_term, look_again)
        raise ZeroDivisionError("a bug in the election")


async def test_a_task_that_dies_ends_the_service(serve: Serve, broker: MemoryBroker, clock: MockClock) -> None:
    """Never half alive: what isn't foreseen outside of one server's cycle reaches whoever started the service."""
    with pytest.raises(BaseExceptionGroup) as caught:
        async with serve(lead=DyingLead()):
            await trio.sleep_forever()
    assert caught.group_contains(ZeroDivisionError, match="a bug in the election")


async def test_a_dying_ticker_ends_the_service(serve: Serve, broker: MemoryBroker, clock: MockClock) -> None:
    def bug() -> None:
        raise ZeroDivisionError

    async def served() -> None:
        async with serve() as running:
            await wait_all_tasks_blocked()
            assert running.service.term is not None
            running.service.term.discovery._begin = bug
            running.service.look_now()
            await trio.sleep_forever()

    with pytest.raises(BaseExceptionGroup) as caught:
        await served()
    assert caught.group_contains(ZeroDivisionError)


def page(running: Running, path: str) -> tuple[int, dict[str, object]]:
    response = status.routes(running.service, loopback_only=True)[path].answer(Request(path))
    return response.status, json.loads(response.body)


async def test_ready_and_not_ready(serve: Serve, broker: MemoryBroker, clock: MockClock) -> None:
    async with serve() as running:
        await wait_all_tasks_blocked()
        code, body = page(running, "/readyz")
        assert code == 200
        assert body["ready"] is True
        assert (body["role"], body["leader"], body["connected"]) == ("alone", True, True)
        broker.stop("the cable was cut")
        await trio.sleep(14)
        assert page(running, "/readyz")[0] == 200  # a short reconnect alarms nobody
        await trio.sleep(2)
        code, body = page(running, "/readyz")
        assert (code, body["ready"], body["connected"]) == (503, False, False)
        assert "the cable was cut" in str(body["connection_error"])
        assert status.routes(running.service, loopback_only=True)["/healthz"].answer(Request("/healthz")).status == 200
        broker.start()
        await wait_all_tasks_blocked()
        assert page(running, "/readyz")[0] == 200


async def test_a_standby_is_ready_and_no_leader(serve: Serve, broker: MemoryBroker, clock: MockClock) -> None:
    class Standby(Unopposed):
        role = "standby"
        detail = "bucket X, 60 s"

        async def hold_terms(self, run_term: RunTerm, look_again: Callable[[], object]) -> None:
            await trio.sleep_forever()

    async with ScriptedNode("n1.example.net").on(broker.connect()) as node, serve(lead=Standby()) as running:
        await trio.sleep(300)
        code, body = page(running, "/readyz")
        assert (code, body["role"], body["leader"], body["paused"]) == (200, "standby", False, True)
        assert body["election"] == "bucket X, 60 s"
        assert running.metric("paused") == 1
        assert node.calls == []


async def test_who_waits_goes_on_waiting_while_the_broker_is_away(
    serve: Serve, broker: MemoryBroker, clock: MockClock
) -> None:
    """Found on the page: 451 of 500 waiting servers had ended as connection_lost within a second."""
    async with AsyncExitStack() as stack:
        for number in range(20):
            await stack.enter_async_context(ScriptedNode(f"n{number}.example.net").on(broker.connect()))
        helper = ScriptedHelper(seconds=5.0)
        running = await stack.enter_async_context(serve(helper=helper, workers=2))
        await trio.sleep(7)
        assert running.words() == ["provisioned", "provisioned"]
        broker.stop()
        await trio.sleep(30)
        lost = running.words().count("connection_lost")
        assert lost <= 2  # those that were at work
        broker.start()
        # Those two are back after the grace of the next discovery.
        assert (await running.outcomes(20 + lost)).count("connection_lost") == lost
        assert running.metric("provisioned") == 20
