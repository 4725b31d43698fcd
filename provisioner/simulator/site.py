"""What the servers of a simulated fleet share, what reached each of them, and what an action comes to."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from attrs import define, field, frozen

from provisioner.simulator.keys import RequestPool

COMPONENT = "provision_mode_server"
AGENTS = ("choria_provision", "choria_util", "discovery", "rpcutil")
LOCK_SECONDS = 120.0
CONFIG = "server.cfg"
PROVISION_KEY = "plugin.choria.server.provision"


def _some_facts(identity: str) -> dict[str, Any]:
    return {"fqdn": identity, "os": {"family": "RedHat", "release": "9"}, "role": "web"}


@frozen(kw_only=True)
class Site:
    """What the servers of one fleet have in common.

    Attributes:
        token: what a provisioner must send; ``""`` takes any.
        jwt: content of provisioning.jwt.
        version: of Choria, such as ``0.30.2``.
        facts: gives a server's facts for its inventory.
        classes: configuration management classes of each server.
        lock_seconds: how long one provisioner keeps a server for itself.
        restart_seconds: least time between an accepted restart and going away.
        return_seconds: time from going away to coming back, where a server does.
        comes_back: whether a restarted server whose configuration doesn't disable provisioning is provisioned again,
            as a real one is. Otherwise each restarted server stays away.
        can_update: whether ``release_update`` is allowed.
        directory: where its configuration would be.
        requests: makes signing requests.
    """

    token: str = field(repr=False)
    jwt: str = field(repr=False)
    version: str = "0.30.2"
    facts: Callable[[str], dict[str, Any]] = _some_facts
    classes: tuple[str, ...] = ()
    lock_seconds: float = LOCK_SECONDS
    restart_seconds: float = 2.0
    return_seconds: float = 1.0
    comes_back: bool = False
    can_update: bool = True
    directory: str = "/etc/choria"
    requests: RequestPool = field(factory=RequestPool, repr=False)


@define
class Received:
    """What reached one server: for tests and closing tables.

    Attributes:
        asked: requests that reached each action, such as ``jwt`` or ``inventory``.
        done: those that were answered with OK.
        configurations: each configuration that was written, in order.
    """

    asked: Counter[str] = field(factory=Counter)
    done: Counter[str] = field(factory=Counter)
    configurations: list[dict[str, str]] = field(factory=list)


@frozen
class Tell:
    """A lifecycle event to publish at once."""

    type: str
    new_version: str = ""


@frozen
class Leave:
    """The server goes away in ``after`` seconds.

    Attributes:
        after: seconds.
        returns: seconds from going away until it starts again; None for never.
        farewell: whether it publishes a shutdown event as it goes.
    """

    after: float
    returns: float | None = None
    farewell: bool = False


Step = Tell | Leave


@frozen
class Answer:
    """What an action came to: the body of the reply (None: no reply), and what happens besides."""

    body: bytes | None
    steps: tuple[Step, ...] = ()
