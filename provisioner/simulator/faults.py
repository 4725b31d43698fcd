"""What can be wrong with a simulated server, on demand."""

from enum import StrEnum

from attrs import frozen


class Kind(StrEnum):
    """One way to misbehave. The words are those of the command line."""

    SILENT = "silent"
    """Is found, and then doesn't answer."""
    SLOW = "slow"
    """Answers late."""
    REFUSING = "refusing"
    """Answers with status 1 and does nothing."""
    LOCKED = "locked"
    """Says that another provisioner holds its lock."""
    WRONG_TOKEN = "wrong-token"  # noqa: S105 - the name of a fault
    """Wants another provisioning token."""
    UNVERIFIABLE_JWT = "unverifiable-jwt"
    """Has a provisioning.jwt that somebody else signed."""
    EXPIRED_JWT = "expired-jwt"
    """Has a provisioning.jwt that has run out."""
    TWICE = "twice"
    """Answers twice with the same bytes, as a network may."""
    TWO_ANSWERS = "two-answers"
    """Answers twice and says different things: somebody else answers in its place."""
    FOR_ANOTHER = "for-another"
    """Answers in another server's name."""
    WRONG_ID = "wrong-id"
    """Answers with the id of another request."""
    WRONG_VERSION = "wrong-version"
    """Answers in the other version of the protocol."""
    GARBAGE = "garbage"
    """Answers with bytes that are no message."""
    BAD_BODY = "bad-body"
    """Answers with a good message whose body isn't JSON."""
    EMPTY_DATA = "empty-data"
    """Says OK, with nothing in the answer."""
    WRONG_TYPES = "wrong-types"
    """Says OK, with a number in place of each thing in the answer."""
    HUGE = "huge"
    """Answers with half a megabyte of words."""
    BAD_CSR = "bad-csr"
    """Sends a signing request that isn't PEM."""
    BAD_KEY = "bad-key"
    """Sends an Ed25519 key of the wrong length."""
    LOST_REPLY = "lost-reply"
    """Does what it is asked, and its answer is lost."""
    DYING = "dying"
    """Disappears when it is asked, without an answer."""
    COMING_BACK = "coming-back"
    """Disappears when it is asked, and comes back and announces itself."""
    UPGRADE_FAILS = "upgrade-fails"
    """Can't be upgraded, and rolls back."""
    UPGRADE_LOOP = "upgrade-loop"
    """Accepts each upgrade and comes back with the version it had."""


@frozen
class Fault:
    """One fault of one server.

    Attributes:
        kind: what it does.
        action: the one action it does it to, such as ``configure``; ``""`` for all.
        times: how often it does it; None for always.
        seconds: of ``SLOW``: how late; of ``COMING_BACK``: how long it is away.
    """

    kind: Kind
    action: str = ""
    times: int | None = None
    seconds: float = 3.0


_USUAL_ACTION = {
    Kind.BAD_CSR: "gencsr",
    Kind.BAD_KEY: "gen25519",
    Kind.DYING: "configure",
    Kind.COMING_BACK: "configure",
    Kind.LOST_REPLY: "configure",
}
_ONCE = (Kind.COMING_BACK, Kind.LOST_REPLY)
"""Those that show what happens afterwards."""


def parse_fault(text: str) -> Fault:
    """A fault as the command line names it: ``slow``, or ``slow:configure`` for one action only.

    Raises:
        ValueError: no such fault; the message lists them all.
    """
    name, _, action = text.partition(":")
    try:
        kind = Kind(name)
    except ValueError:
        raise ValueError(f"no fault is called {name!a}; there are {', '.join(Kind)}") from None
    return Fault(kind, action or _USUAL_ACTION.get(kind, ""), times=1 if kind in _ONCE else None)
