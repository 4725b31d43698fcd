"""The cycle cut at each of its awaits: nothing is left running, and the next discovery provisions the server."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import trio
from trio.testing import MockClock

from provisioner.bus.memory import MemoryBroker, dropping
from provisioner.leader.lead import RunTerm
from provisioner.leader.term import Term
from provisioner.testing import ScriptedHelper, ScriptedNode
from tests.flow.conftest import Serve

WORKER = "provisioner.fleet.crew.Crew._work"


class Cutter(trio.abc.Instrument):
    """Calls ``action`` at the ``at``-th moment at which a worker in a cycle blocks, or is about to go on."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.steps = 0
        self.done = False
        self.action: Callable[[], None] = lambda: None

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._moment(task)

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self._moment(task)

    def _moment(self, task: trio.lowlevel.Task) -> None:
        if self.done or task.name != WORKER or not _in_cycle(task):
            return
        if self.steps == self.at:
            self.done = True
            self.action()
        self.steps += 1


def _in_cycle(task: trio.lowlevel.Task) -> bool:
    return any(frame.f_code.co_qualname == "run_cycle" for frame, _ in task.iter_await_frames())


@contextmanager
def cutting(cutter: Cutter) -> Iterator[None]:
    trio.lowlevel.add_instrument(cutter)
    try:
        yield
    finally:
        trio.lowlevel.remove_instrument(cutter)


class Terms:
    """A lead that can be taken away and given back."""

    role = "leader"
    detail = ""

    def __init__(self) -> None:
        self.term: Term | None = None
        self.won = 0

    def mine(self, identity: str) -> bool:
        return True

    async def hold_terms(self, run_term: RunTerm, look_again: Callable[[], object]) -> None:
        while True:
            self.won += 1
            self.term = Term()
            await run_term(self.term)
            await trio.sleep(1)


HOW = ["cancelled", "connection lost", "lead lost", "time-out"]


@pytest.mark.parametrize("how", HOW)
async def test_cut_at_each_await_and_provisioned_all_the_same(
    serve: Serve, broker: MemoryBroker, clock: MockClock, how: str
) -> None:
    cuts = 0
    for at in range(100):
        terms, cutter = Terms(), Cutter(at)
        node = ScriptedNode(f"n{at}.example.net")
        helper = ScriptedHelper(seconds=1.0)
        async with (
            node.on(broker.connect()),
            serve(helper=helper, lead=terms) as running,
            trio.open_nursery() as nursery,
        ):

            def cut() -> None:
                if how == "connection lost":
                    broker.stop()
                    broker.start()
                elif how == "time-out":
                    # From here on nothing arrives, for longer than all tries of any action take.
                    broker.faults.append(dropping("provisioning.>"))
                    nursery.start_soon(heal)
                else:
                    assert terms.term is not None
                    if how == "lead lost":
                        terms.term.end()
                    else:
                        terms.term.scope.cancel()

            async def heal() -> None:
                await trio.sleep(150)
                broker.faults.clear()

            cutter.action = cut
            with cutting(cutter):
                # Whatever was cut: within the grace after a restart and one interval more it is provisioned.
                with trio.move_on_after(400):
                    while "provisioned" not in running.words():
                        await running.outcomes(len(running.ended) + 1)
            assert "provisioned" in running.words(), f"cut at await {at}: {running.words()}"
            assert trio.lowlevel.current_statistics().tasks_living < 40
            assert running.service.term is not None
            assert running.service.term.crew.at_work == {}
            nursery.cancel_scope.cancel()
            broker.faults.clear()
            cuts += cutter.done
        if not cutter.done:
            break
    # Three calls and the helper: each was cut while it waited, and with its answer in hand.
    assert cuts == 8
    assert not cutter.done, "the cycle has more awaits than were cut"


async def test_nothing_is_sent_after_the_lead_is_lost(serve: Serve, broker: MemoryBroker, clock: MockClock) -> None:
    """At each await in turn: from the moment the term is over, no byte of it reaches the bus."""
    for at in range(100):
        terms, cutter = Terms(), Cutter(at)
        node = ScriptedNode(f"n{at}.example.net", discoverable=True)
        async with node.on(broker.connect()), serve(helper=ScriptedHelper(seconds=1.0), lead=terms) as running:
            sent_at_loss: list[int] = []

            def cut() -> None:
                assert terms.term is not None
                terms.term.end()
                sent_at_loss.append(len(node.calls))

            cutter.action = cut
            with cutting(cutter):
                with trio.move_on_after(200):
                    while not cutter.done and "provisioned" not in running.words():
                        await trio.sleep(0.01)
            if not cutter.done:
                break
            await trio.sleep(0.5)  # less than until the next term
            assert len(node.calls) - sent_at_loss[0] <= 1  # one may have been on its way
            assert terms.won == 1
            restarted = sent_at_loss[0] == 3 and running.words() == ["provisioned"]
            assert running.metric("outcomes", outcome="lost_lead") == (0 if restarted else 1)
            assert running.metric("paused") == 1
            assert len(running.helper.inputs) <= 1


async def test_a_stopped_process_wakes_up_after_its_term(serve: Serve, broker: MemoryBroker, clock: MockClock) -> None:
    """The clock that never stops has passed the end while the event loop stood still: check() is the last guard."""
    boot = 0.0

    class Expiring(Terms):
        async def hold_terms(self, run_term: RunTerm, look_again: Callable[[], object]) -> None:
            self.term = Term(ends=1000.0, clock=lambda: boot)
            await run_term(self.term)
            await trio.sleep_forever()

    def helper(given: object) -> dict[str, object]:
        nonlocal boot
        boot = 2000.0  # stopped for long, while the helper ran
        return {"configuration": {"a": "b"}}

    async with ScriptedNode("n1.example.net").on(broker.connect()) as node:
        async with serve(helper=ScriptedHelper(helper), lead=Expiring()) as running:
            await trio.sleep(30)
            assert [action for action, _ in node.calls] == ["inventory"]
            assert running.metric("outcomes", outcome="lost_lead") == 1
