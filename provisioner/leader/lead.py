"""Who decides when this instance may act: the seam between the service and an election."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from provisioner.leader.term import Term

RunTerm = Callable[[Term], Awaitable[None]]


class Lead(Protocol):
    """Opens terms, one at a time."""

    @property
    def role(self) -> str:
        """What to tell an operator: ``alone``, ``leader``, ``standby``, ``unknown``, ``sharing``."""
        ...

    @property
    def detail(self) -> str:
        """What the role rests on: the bucket's state, why nothing is known; ``""`` when there is nothing to tell."""
        ...

    async def hold_terms(self, run_term: RunTerm) -> None:
        """Runs until cancelled: calls ``run_term`` for each term won and ends that term when it is lost."""
        ...


class Unopposed:
    """No election: one term that lasts for ever."""

    role = "alone"
    detail = ""

    async def hold_terms(self, run_term: RunTerm) -> None:
        """Runs the one term."""
        await run_term(Term())
