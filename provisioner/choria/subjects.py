"""Where messages go: the subjects of wire-protocol 1.3, 2 and 9.1, the same for both versions."""

import hashlib

COLLECTIVE = "provisioning"
"""The collective of servers without a configuration, and of whoever provisions them."""


def node(identity: str, collective: str = COLLECTIVE) -> str:
    """A directed request to one server. ``identity`` is inserted as it stands: check it first (``ids``)."""
    return f"{collective}.node.{identity}"


def broadcast(agent: str, collective: str = COLLECTIVE) -> str:
    """A request to every server that has the agent."""
    return f"{collective}.broadcast.agent.{agent}"


def reply_prefix(caller: str, collective: str = COLLECTIVE) -> str:
    """What all reply subjects of one caller begin with; ``.*`` behind it is one subscription for all of them."""
    return f"{collective}.reply.{hashlib.md5(caller.encode(), usedforsecurity=False).hexdigest()}"


def reply(caller: str, request_id: str, collective: str = COLLECTIVE) -> str:
    """Where the replies to one request go."""
    return f"{reply_prefix(caller, collective)}.{request_id}"


def event(type_: str, component: str) -> str:
    """A lifecycle event, such as ``choria.lifecycle.event.startup.provision_mode_server``."""
    return f"choria.lifecycle.event.{type_}.{component}"
