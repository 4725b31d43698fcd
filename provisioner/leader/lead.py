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

    def mine(self, identity: str) -> bool:
        """Whether this instance may provision the server; others may be another instance's share."""
        ...

    async def hold_terms(self, run_term: RunTerm, look_again: Callable[[], object]) -> None:
        """Runs until cancelled: calls ``run_term`` for each term won and ends that term when it is lost.

        Args:
            run_term: runs one term.
            look_again: called when servers became ours that were not before.
        """
        ...


class Unopposed:
    """No election: one term that lasts for ever."""

    role = "alone"
    detail = ""

    def mine(self, identity: str) -> bool:  # noqa: ARG002 - the seam's signature
        """All are."""
        return True

    async def hold_terms(self, run_term: RunTerm, look_again: Callable[[], object]) -> None:  # noqa: ARG002
        """Runs the one term."""
        await run_term(Term())
