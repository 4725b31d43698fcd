"""All instances work, each on its own share of the fleet (``sharing: true``): a lead that nobody has to win."""

import logging
import secrets
from collections.abc import Callable
from time import time

import trio

from provisioner.bus.interface import Bus, Message
from provisioner.errors import BadReply, BusError
from provisioner.leader import members
from provisioner.leader.lead import RunTerm
from provisioner.leader.members import Members, SignOfLife
from provisioner.leader.term import Term
from provisioner.metrics import Metrics

log = logging.getLogger(__name__)

LISTEN_FIRST = 1.0
"""Seconds to hear who is there before the first term: every member answers a newcomer at once."""

REMIND_EVERY = 60.0


class Sharing:
    """One member.

    Args:
        bus: the shared connection.
        identity: our Choria identity; must differ from every other member's.
        metrics: keeps the number of members.
        period: seconds from one sign of life to the next.
    """

    def __init__(self, bus: Bus, identity: str, metrics: Metrics, *, period: float = members.PERIOD) -> None:
        me = SignOfLife(identity, secrets.token_hex(8), time())
        self.members = Members(me, period=period)
        self._look_again: Callable[[], object] = lambda: None
        self._bus = bus
        self._metrics = metrics
        self._news = trio.Event()
        self._aside = False
        metrics.members.set(1)

    @property
    def role(self) -> str:
        """``sharing``, or ``aside`` while an older instance with our identity is there."""
        return "aside" if self._aside else "sharing"

    @property
    def detail(self) -> str:
        """Who shares the fleet."""
        if self._aside:
            return f"another instance with the identity {self.members.me.identity} was here first"
        return "members: " + ", ".join(self.members.identities)

    def mine(self, identity: str) -> bool:
        """Whether this server is ours to provision."""
        return self.members.mine(identity)

    async def hold_terms(self, run_term: RunTerm, look_again: Callable[[], object]) -> None:
        """Runs until cancelled; then says good-bye, so that the others take our servers at once."""
        self._look_again = look_again
        try:
            async with self._bus.subscribe(members.SUBJECT, self._on_sign), trio.open_nursery() as nursery:
                nursery.start_soon(self._speak)
                nursery.start_soon(self._hello_again)
                await trio.sleep(LISTEN_FIRST)
                while True:
                    await self._work_until_aside(run_term)
                    await self._stand_aside()
        finally:
            self._say(leaving=True)

    async def _work_until_aside(self, run_term: RunTerm) -> None:
        if self.members.elder_twin() is not None:
            return
        self._aside = False
        term = Term()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_term, term)
            while self.members.elder_twin() is None:
                await self._news.wait()
            term.end()

    async def _stand_aside(self) -> None:
        self._aside = True
        while (elder := self.members.elder_twin()) is not None:
            log.error(
                "Another instance with the identity %s (%s) was here first: both would hold the same locks on servers. "
                "This one stands aside; give it an identity of its own in choria.cfg",
                elder.identity, elder.instance,
            )  # fmt: skip
            with trio.move_on_after(REMIND_EVERY):
                await self._news.wait()

    async def _speak(self) -> None:
        """Our signs of life, and a look at who fell silent. Nobody is given up while we hear nothing ourselves."""
        while True:
            self._say()
            await trio.sleep(self.members.period)
            if self._bus.connected:
                for identity in self.members.expire(trio.current_time()):
                    log.warning("Member %s fell silent; its servers are shared among those left", identity)
                    self._changed()

    async def _hello_again(self) -> None:
        """After a lost connection the others may have given us up: speak at once."""
        epoch = self._bus.epoch
        while True:
            epoch = await self._bus.wait_epoch_change(epoch)
            self._say()

    def _say(self, *, leaving: bool = False) -> None:
        me = self.members.me
        sign = SignOfLife(me.identity, me.instance, me.started, leaving)
        try:
            self._bus.publish(members.SUBJECT, sign.encode())
        except BusError as error:
            log.debug("No sign of life was sent: %s", error)

    def _on_sign(self, message: Message) -> None:
        try:
            sign = members.decode(message.data)
        except BadReply as error:
            log.warning("A sign of life can't be read: %s", error)
            return
        if self.members.hear(sign, trio.current_time()):
            log.info("Member %s %s", sign.identity, "leaves" if sign.leaving else "is here")
            if not sign.leaving:
                self._say()  # a newcomer learns of us now, not in a period
            self._changed()

    def _changed(self) -> None:
        self._metrics.members.set(len(self.members.identities))
        self._news.set()
        self._news = trio.Event()
        self._look_again()
