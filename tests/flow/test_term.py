"""A term that is over by the clock, before anything in this process has noticed."""

from collections.abc import Callable

import trio
from trio.testing import wait_all_tasks_blocked

from provisioner.leader.lead import RunTerm
from provisioner.leader.term import Term
from provisioner.status import condition
from tests.flow.conftest import Serve


class OneTerm:
    """A lead with one term, by a clock of its own."""

    role = "leader"
    detail = ""

    def __init__(self) -> None:
        self.now = 100.0
        self.term = Term(200.0, clock=lambda: self.now)

    def mine(self, identity: str) -> bool:
        return True

    async def hold_terms(self, run_term: RunTerm, look_again: Callable[[], object]) -> None:
        await run_term(self.term)
        await trio.sleep_forever()


async def test_a_process_that_wakes_up_late_does_not_call_itself_leader(serve: Serve) -> None:
    """After a SIGSTOP its page may be asked before its own clock has ended the term (seen on a real broker)."""
    lead = OneTerm()
    async with serve(lead=lead) as running:
        await wait_all_tasks_blocked()
        assert condition(running.service)["leader"]
        lead.now = 200.0
        assert running.service.term is not None
        assert not condition(running.service)["leader"]
        assert condition(running.service)["paused"]
