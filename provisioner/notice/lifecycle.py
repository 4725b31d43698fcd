"""Finds servers by listening: one in provisioning mode publishes a startup event when it is ready (wire-protocol 9)."""

import logging
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import time

from provisioner.bus.interface import Bus, Message
from provisioner.choria import subjects
from provisioner.choria.events import Event, decode_event, encode_native
from provisioner.choria.rpc import printable
from provisioner.errors import BadReply, BusError
from provisioner.metrics import Metrics
from provisioner.seldom import Seldom
from provisioner.version import __version__

log = logging.getLogger(__name__)


@asynccontextmanager
async def listening(bus: Bus, component: str, found: Callable[[str], object], metrics: Metrics) -> AsyncIterator[None]:
    """Calls ``found`` with the identity of each startup event of ``component``, while the context is open.

    An event that is not one is counted and told; nothing in it can end the subscription.
    """
    seldom = Seldom(log)

    def on_event(message: Message) -> None:
        try:
            event = decode_event(message.data)
        except BadReply as error:
            metrics.refused_sighting("bad_event")
            seldom.warning("unusable", "An event on %s can't be used: %s", message.subject, error)
            return
        if event.type != "startup" or event.component != component or not event.identity:
            metrics.refused_sighting("bad_event")
            seldom.warning(
                "other", "An event on %s is not a startup of %s: %s of %s",
                message.subject, component, event.type, printable(event.component, 80),
            )  # fmt: skip
            return
        found(event.identity)

    async with bus.subscribe(subjects.event("startup", component), on_event):
        yield


def announce(bus: Bus, identity: str) -> None:
    """Publishes our own startup event, once after the first connection (wire-protocol 9.5). Never fails."""
    event = Event(
        type="startup",
        id=str(uuid.uuid4()),
        identity=identity,
        component="provisioner",
        timestamp=int(time()),
        version=__version__,
    )
    try:
        bus.publish(event.subject, encode_native(event))
    except BusError as error:
        log.warning("Our startup event could not be published: %s", error)
