"""Several instances at work on one fleet: who is there, and whose server is whose. Pure; time is an argument.

Each server belongs to one live member by rendezvous hashing: every instance computes the same owner from the same list,
and when a member comes or goes only its own servers move. Two lists that differ for a moment are harmless: the server's
own lock lets one of two provisioners through (``locked``).
"""

from hashlib import blake2b

from attrs import frozen

from provisioner import strictjson
from provisioner.choria.ids import identity_problem
from provisioner.errors import BadReply

SUBJECT = "provisioning.provisioners.alive"
"""Where members speak to each other; servers may neither publish nor hear it (wire-protocol 1.7)."""

PERIOD = 5.0
"""Seconds from one sign of life to the next."""

SILENT_PERIODS = 3
"""A member that was not heard for so many periods is out."""

MEMBERS_LIMIT = 100
"""Members taken notice of: a list that grows without end is an attack or a mistake."""


@frozen
class SignOfLife:
    """What a member says of itself.

    Attributes:
        identity: its Choria identity: what servers' locks and the hashing know it by.
        instance: a random word of this one process.
        started: unix time in seconds.
        leaving: it stops now.
    """

    identity: str
    instance: str
    started: float
    leaving: bool = False

    @property
    def seniority(self) -> tuple[float, str]:
        """Of two instances with one identity the smaller one stays."""
        return (self.started, self.instance)

    def encode(self) -> bytes:
        """The message."""
        return strictjson.dumps(
            {
                "identity": self.identity,
                "instance": self.instance,
                "started": self.started,
                "leaving": self.leaving,
            }
        ).encode()


def decode(data: bytes) -> SignOfLife:
    """Reads a sign of life.

    Raises:
        BadReply: it is none.
    """
    if len(data) > 4096:
        raise BadReply("a sign of life is too long")
    try:
        found = strictjson.loads(data)
    except strictjson.NotJSON:
        raise BadReply("a sign of life is not JSON") from None
    if not isinstance(found, dict):
        raise BadReply("a sign of life is not an object")
    identity, instance, started, leaving = (found.get(key) for key in ("identity", "instance", "started", "leaving"))
    if not isinstance(identity, str) or not isinstance(instance, str) or len(instance) > 64:
        raise BadReply("a sign of life without identity and instance")
    if type(started) not in {int, float} or not isinstance(leaving, bool):
        raise BadReply("a sign of life without started and leaving")
    if problem := identity_problem(identity):
        raise BadReply(f"a sign of life of an impossible identity: {problem}")
    return SignOfLife(identity, instance, float(started or 0), leaving)


class Members:
    """Those heard lately, ourselves included.

    Args:
        me: this instance.
        period: seconds from one sign of life to the next.
    """

    def __init__(self, me: SignOfLife, *, period: float = PERIOD) -> None:
        self.me = me
        self.period = period
        self._heard: dict[str, tuple[SignOfLife, float]] = {}
        self._owners: tuple[str, ...] = (me.identity,)

    def hear(self, sign: SignOfLife, now: float) -> bool:
        """Takes one sign of life.

        Returns:
            Whether it was news: a member that was not known, or one that leaves.
        """
        if sign.instance == self.me.instance:
            return False
        known = sign.instance in self._heard
        if sign.leaving:
            self._heard.pop(sign.instance, None)
        elif known or len(self._heard) < MEMBERS_LIMIT:
            self._heard[sign.instance] = (sign, now)
        self._count()
        return known == sign.leaving

    def expire(self, now: float) -> list[str]:
        """Forgets who fell silent.

        Returns:
            Their identities.
        """
        limit = now - SILENT_PERIODS * self.period
        gone = [instance for instance, (_, heard) in self._heard.items() if heard < limit]
        names = [self._heard.pop(instance)[0].identity for instance in gone]
        self._count()
        return names

    def elder_twin(self) -> SignOfLife | None:
        """Another instance with our identity that was there before us: we share its lock, and must stand aside."""
        twins = [sign for sign, _ in self._heard.values() if sign.identity == self.me.identity]
        elder = min(twins, key=lambda sign: sign.seniority, default=self.me)
        return elder if elder.seniority < self.me.seniority else None

    @property
    def identities(self) -> tuple[str, ...]:
        """All members, ourselves included, in order."""
        return self._owners

    def owner(self, server: str) -> str:
        """The member that a server belongs to."""
        return max(self._owners, key=lambda member: _weight(member, server))

    def mine(self, server: str) -> bool:
        """Whether a server belongs to us."""
        return len(self._owners) == 1 or self.owner(server) == self.me.identity

    def _count(self) -> None:
        self._owners = tuple(sorted({self.me.identity, *(sign.identity for sign, _ in self._heard.values())}))


def _weight(member: str, server: str) -> bytes:
    return blake2b(f"{member}\0{server}".encode(), digest_size=8).digest()
