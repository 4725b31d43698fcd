"""A fleet of simulated servers on one bus: subscriptions, timers and who is there (wire-protocol 13).

async with open_fleet(bus, make_servers(50, version=1, token="s3cret", now=time.time()).servers) as fleet:
await fleet.announce()
await fleet.wait_gone(50)
"""

import heapq
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import count
from random import Random
from uuid import UUID

import trio
from attrs import evolve, frozen

from provisioner.bus.interface import Bus, Message
from provisioner.choria import subjects
from provisioner.choria.events import encode_cloud
from provisioner.choria.wire import Request
from provisioner.errors import BadReply, BusError
from provisioner.simulator.faults import Fault, Kind
from provisioner.simulator.keys import Issuer, ed25519_issuer, provisioning_claims, rsa_issuer
from provisioner.simulator.node import Node
from provisioner.simulator.server import Effect, Send, Server, server_wire
from provisioner.simulator.site import AGENTS, Leave, Site, Tell

log = logging.getLogger(__name__)

BATCH = 100
"""Servers that answer one broadcast before other tasks get their turn."""
DOMAIN = "example.net"
NODE_PREFIX = subjects.node("")


@frozen
class MadeFleet:
    """Servers, and what a provisioner of theirs must know.

    Attributes:
        servers: in the order of their names.
        site: what they share.
        issuer: who signed their provisioning.jwt; ``issuer.verification_text`` is for ``jwt_verify_cert``.
    """

    servers: tuple[Server, ...]
    site: Site
    issuer: Issuer


def make_servers(
    number: int,
    *,
    version: int,
    token: str,
    now: float,
    faults: Iterable[tuple[Fault, int]] = (),
    issuer: Issuer | None = None,
    site: Site | None = None,
    domain: str = DOMAIN,
    seed: int = 0,
) -> MadeFleet:
    """Servers ``n0001.example.net`` and so on, the first ones with the faults.

    Args:
        number: how many.
        version: protocol version they speak, 1 or 2.
        token: their provisioning token.
        now: Unix seconds of issue of their provisioning.jwt.
        faults: each with how many servers have it.
        issuer: signs provisioning.jwt; by default a fresh one: RSA for version 1, Ed25519 for version 2.
        site: what they share, ``token`` and ``jwt`` excepted; see ``Site`` for the defaults.
        domain: end of their names.
        seed: of their luck.
    """
    issuer = issuer or (rsa_issuer() if version == 1 else ed25519_issuer())
    claims = provisioning_claims(token, now=int(now), version=version)
    good = evolve(site or Site(token="", jwt=""), token=token, jwt=issuer.provisioning_token(claims))
    sites: dict[Kind, Callable[[], Site]] = {
        Kind.WRONG_TOKEN: lambda: evolve(good, token=f"not {token}"),
        Kind.UNVERIFIABLE_JWT: lambda: evolve(
            good, jwt=(rsa_issuer() if version == 1 else ed25519_issuer()).provisioning_token(claims)
        ),
        Kind.EXPIRED_JWT: lambda: evolve(good, jwt=issuer.provisioning_token(claims | {"exp": int(now) - 3600})),
    }
    troubles = [fault for fault, servers in faults for _ in range(servers)]
    made_sites: dict[Kind, Site] = {}
    wire = server_wire(version)
    servers = []
    for place in range(number):
        fault = troubles[place] if place < len(troubles) else None
        its_site = good
        if fault is not None and fault.kind in sites:
            if fault.kind not in made_sites:
                made_sites[fault.kind] = sites[fault.kind]()
            its_site = made_sites[fault.kind]
        node = Node(f"n{place + 1:04d}.{domain}", its_site, Random(f"{seed}.{place}"))  # noqa: S311 - a fleet's luck
        if fault is not None and fault.kind in {Kind.UPGRADE_FAILS, Kind.UPGRADE_LOOP}:
            node.upgrade = "fails" if fault.kind is Kind.UPGRADE_FAILS else "nothing"
        servers.append(Server(node, wire, fault))
    return MadeFleet(tuple(servers), good, issuer)


class Fleet:
    """Servers that are connected by one bus. Made by ``open_fleet``.

    Attributes:
        servers: by identity. More may be put in at any time.
        gone: how many have left and stay away.
    """

    def __init__(self, bus: Bus, servers: Iterable[Server], clock: Callable[[], float], seed: int) -> None:
        self.servers: dict[str, Server] = {server.identity: server for server in servers}
        self.gone = 0
        self._bus = bus
        self._clock = clock
        self._random = Random(seed)  # noqa: S311 - ids of events, repeatable
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._timer_set = trio.Event()
        self._changed = trio.Event()
        self._broadcasts, self._to_answer = trio.open_memory_channel[Message](100)

    # --- what others may ask ------------------------------------------------------------------------------------------

    async def announce(self, identities: Iterable[str] | None = None) -> None:
        """Publishes the startup event of each server, or of these, and waits until the broker has them."""
        for place, identity in enumerate(list(self.servers if identities is None else identities)):
            self._tell(self.servers[identity], Tell("startup"))
            if place % BATCH == BATCH - 1:
                await trio.lowlevel.checkpoint()
        await self._bus.flush()

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Returns as soon as ``condition`` holds; it is asked whenever a server was asked something, came or went."""
        while not condition():
            await self._changed.wait()

    async def wait_gone(self, number: int) -> None:
        """Returns when so many servers have left for good: after an accepted restart or shutdown, or dead."""
        await self.wait_until(lambda: self.gone >= number)

    # --- messages -----------------------------------------------------------------------------------------------------

    def on_directed(self, message: Message) -> None:
        """Handler of ``provisioning.node.>``: one subscription for all identities."""
        server = self.servers.get(message.subject[len(NODE_PREFIX) :])
        if server is None or (request := _opened(server, message)) is None:
            return
        self._do(server, server.receive(request, now=self._clock(), url=self._bus.url))

    def on_broadcast(self, message: Message) -> None:
        """Handler of the agents' broadcast subjects. The answering is a task's work: a handler must not block."""
        try:
            self._broadcasts.send_nowait(message)
        except trio.WouldBlock:
            log.warning("A simulated fleet is behind with answering broadcasts and skips one")

    async def answer_broadcasts(self) -> None:
        """The task that answers broadcasts, server by server."""
        async for message in self._to_answer:
            opened: dict[int, Request | None] = {}  # once a version, not once a server
            for place, server in enumerate(list(self.servers.values())):
                if server.wire.version not in opened:
                    opened[server.wire.version] = _opened(server, message)
                if request := opened[server.wire.version]:
                    self._do(server, server.receive(request, now=self._clock(), url=self._bus.url))
                if place % BATCH == BATCH - 1:
                    await trio.lowlevel.checkpoint()

    def _do(self, server: Server, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                if effect.after:
                    self._later(effect.after, partial(self._say, server, effect))
                else:
                    self._say(server, effect)
            elif isinstance(effect, Tell):
                self._tell(server, effect)
            else:
                self._later(effect.after, partial(self._leave, server, effect))
        self._notify()

    def _say(self, server: Server, send: Send) -> None:
        if server.present:
            self._publish(send.subject, send.data)

    def _tell(self, server: Server, tell: Tell) -> None:
        id_ = str(UUID(int=self._random.getrandbits(128), version=4))
        event = server.event(tell, now=self._clock(), id_=id_)
        self._publish(event.subject, encode_cloud(event))

    def _publish(self, subject: str, data: bytes) -> None:
        try:
            self._bus.publish(subject, data)
        except (BusError, ValueError) as error:
            # A real server's message would be lost as well; a bad reply subject is the requester's fault.
            log.debug("A simulated server could not publish: %s", error)

    # --- coming and going ---------------------------------------------------------------------------------------------

    def _leave(self, server: Server, leave: Leave) -> None:
        if not server.present:
            return  # it died meanwhile
        if leave.farewell:
            self._tell(server, Tell("shutdown"))
        server.present = False
        if leave.returns is None:
            self.gone += 1
        else:
            self._later(leave.returns, partial(self._return, server))
        self._notify()

    def _return(self, server: Server) -> None:
        if server.node.start():
            server.present = True
            self._tell(server, Tell("startup"))
        else:
            self.gone += 1  # it has its configuration, and is in its own collective now
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    # --- timers -------------------------------------------------------------------------------------------------------

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (trio.current_time() + seconds, next(self._order), action))
        self._timer_set.set()

    async def run_timers(self) -> None:
        """The task that does what was put off: one for the fleet, not one for each thing."""
        while True:
            until = self._timers[0][0] if self._timers else float("inf")
            if until <= trio.current_time():
                heapq.heappop(self._timers)[2]()
                continue
            self._timer_set = trio.Event()
            with trio.move_on_at(until):
                await self._timer_set.wait()


def _opened(server: Server, message: Message) -> Request | None:
    try:
        return server.wire.decode_request(message.data)
    except BadReply as error:
        log.debug("A simulated server drops a message: %s", error)
        return None


@asynccontextmanager
async def open_fleet(
    bus: Bus, servers: Iterable[Server], *, clock: Callable[[], float] = time.time, seed: int = 0
) -> AsyncIterator[Fleet]:
    """Connects servers to a bus while the context is open. They announce themselves only by ``Fleet.announce``.

    Args:
        bus: the connection that they share. It may come and go; nothing is kept to be sent later.
        servers: see ``make_servers``; names must be unique.
        clock: Unix seconds, as their clocks show them.
        seed: of the ids of their events.
    """
    fleet = Fleet(bus, servers, clock, seed)
    async with trio.open_nursery() as nursery, AsyncExitStack() as subscriptions:
        await subscriptions.enter_async_context(bus.subscribe(subjects.node(">"), fleet.on_directed))
        for agent in AGENTS:
            await subscriptions.enter_async_context(bus.subscribe(subjects.broadcast(agent), fleet.on_broadcast))
        nursery.start_soon(fleet.run_timers)
        nursery.start_soon(fleet.answer_broadcasts)
        yield fleet
        nursery.cancel_scope.cancel()


def summary(servers: Iterable[Server]) -> str:
    """A closing line: how many were configured and restarted, how often at most."""
    received = [server.node.received for server in servers]
    configured = sum(1 for each in received if each.configurations)
    restarted = sum(1 for each in received if each.done["restart"])
    most = max((len(each.configurations) for each in received), default=0)
    return f"{len(received)} servers: {configured} configured (at most {most} times), {restarted} restarted"
