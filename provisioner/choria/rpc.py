"""RPC bodies: what an agent is asked and what it answers, and which refusals no retry can help (wire-protocol 5, 6)."""

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

from attrs import field, frozen

from provisioner.choria.encoding import Layer, dumps
from provisioner.errors import BadReply, Locked, RemoteRefusal

MAX_STATUSMSG = 500
"""Characters kept of a server's own words: a log line, not a log file."""


class Status(IntEnum):
    """What an agent says about a request (5.3)."""

    OK = 0
    ABORTED = 1
    UNKNOWN_ACTION = 2
    MISSING_DATA = 3
    INVALID_DATA = 4
    UNKNOWN_ERROR = 5


@frozen
class RPCRequest:
    """The body of a request. ``data`` may hold a token or a sealed key, and is never shown."""

    agent: str
    action: str
    data: dict[str, Any] = field(repr=False)


@frozen
class RPCReply:
    """The body of a reply.

    Attributes:
        action: the action that answers; ``""`` when the request could not be read.
        statuscode: see ``Status``; an unknown code stays the number it is.
        statusmsg: the server's own words, at most 500 characters, none of them control characters.
        data: the action's output, members unchecked.
    """

    action: str
    statuscode: int
    statusmsg: str
    data: dict[str, Any] = field(repr=False)


LOCKED = "Could not obtain provisioning lock"
"""Another provisioner holds the server's lock (6.1)."""

HOPELESS = (
    "Incorrect provision token supplied",
    "Cannot reconfigure a server that is not in provisioning mode",
    "Cannot restart a server that is not in provisioning mode",
    "Cannot shutdown a server that is not in provisioning mode",
    "Cannot update a server that is not in provisioning mode",
    "Server is already in provisioning mode",
    "No Provisioning JWT file has been configured",
    "Provisioning JWT file does not exist",
    "Cannot determine ",
    "Version updates is not enabled",
    "Did not receive any configuration",
    "EDCH Public Key not supplied",
    "Could not decode configuration data",
    "Could not write config: generated configuration could not be parsed",
    "TLS Setup Failed: could not decrypt private key",
    "Could not save Action Policies: expected ",
    "Could not save Open Policy Agent Policies: expected ",
)
"""How refusals begin that the same request will meet again (section 6)."""


def printable(text: str, limit: int = MAX_STATUSMSG) -> str:
    """A stranger's words on one line: what isn't printable becomes a blank, and no more than ``limit`` characters."""
    short = text if len(text) <= limit else text[: limit - 3] + "..."
    return "".join(character if character.isprintable() else " " for character in short)


def encode_rpc_request(agent: str, action: str, data: Mapping[str, Any]) -> bytes:
    """The body of a request; keys of ``data`` are sorted at every level, as the reference client's are."""
    return f'{{"agent":{dumps(agent)},"action":{dumps(action)},"data":{dumps(dict(data), sort_keys=True)}}}'.encode()


def decode_rpc_request(payload: bytes) -> RPCRequest:
    """Opens the body of a request; missing ``data`` is ``{}`` (5.1).

    Raises:
        BadReply: no such body. An agent answers that with ``Status.INVALID_DATA``.
    """
    body = Layer.decode(payload, "RPC request")
    return RPCRequest(agent=body.text("agent"), action=body.text("action"), data=body.mapping("data"))


def encode_rpc_reply(
    action: str, data: Mapping[str, Any], *, statuscode: int = Status.OK, statusmsg: str = "OK"
) -> bytes:
    """The body of a reply; keys of ``data`` stay in their order."""
    return dumps(
        {
            "action": action,
            "statuscode": int(statuscode),
            "statusmsg": statusmsg,
            "data": dict(data),
        }
    ).encode()


def decode_rpc_reply(payload: bytes) -> RPCReply:
    """Opens the body of a reply. It says nothing about success: ``raise_for_status`` does.

    Raises:
        BadReply: no such body; a status code that is missing is one of the reasons, so ``{}`` is never a success.
    """
    body = Layer.decode(payload, "RPC reply")
    statuscode = body.integer("statuscode")
    if not 0 <= statuscode <= 255:
        raise BadReply("statuscode of the RPC reply is not within 0 to 255")
    return RPCReply(
        action=body.optional_text("action"),
        statuscode=statuscode,
        statusmsg=printable(body.optional_text("statusmsg")),
        data=body.mapping("data"),
    )


def raise_for_status(reply: RPCReply) -> None:
    """Returns for status OK.

    Raises:
        Locked: another provisioner holds the server's lock.
        RemoteRefusal: any other status; ``can_retry`` is False when the same request will be refused again.
    """
    if reply.statuscode == Status.OK:
        return
    text = reply.statusmsg or f"status code {reply.statuscode} without a message"
    if reply.statusmsg.startswith(LOCKED):
        raise Locked(reply.statuscode, text, can_retry=False)
    hopeless = reply.statuscode in {Status.UNKNOWN_ACTION, Status.MISSING_DATA, Status.INVALID_DATA}
    hopeless = hopeless or text.startswith(HOPELESS) or _still_provisioning(text)
    raise RemoteRefusal(reply.statuscode, text, can_retry=not hopeless)


def _still_provisioning(text: str) -> bool:
    """``restart`` refused for what the written configuration says: restarting again can't change it (6.6)."""
    return text.startswith("Configuration ") and ("enables provisioning" in text or "could not be parsed" in text)
