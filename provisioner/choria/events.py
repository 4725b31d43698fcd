"""Lifecycle events in both their forms: native, and wrapped as CloudEvents 1.0 (wire-protocol 9)."""

from datetime import UTC, datetime
from typing import Any

from attrs import frozen

from provisioner.choria import subjects
from provisioner.choria.encoding import Layer, dumps, shown
from provisioner.errors import BadReply

PREFIX = "io.choria.lifecycle.v1."
SOURCE = "io.choria.lifecycle"
TYPES = ("startup", "shutdown", "provisioned", "alive", "governor", "upgraded")
MAX_EVENT_BYTES = 64 * 1024
"""The largest event we decode: real ones have some 500 bytes."""
MAX_TIMESTAMP = 253_402_300_799
"""Unix seconds of the last one of the year 9999."""


@frozen
class Event:
    """One lifecycle event.

    Attributes:
        type: one of ``TYPES``.
        id: UUID with dashes.
        identity: the server's; whatever it says, unchecked (``ids.identity_problem``).
        component: such as ``provision_mode_server``.
        timestamp: Unix seconds.
        version: of startup, alive and upgraded; else ``""``.
        new_version: of upgraded; else ``""``.
    """

    type: str
    id: str
    identity: str
    component: str
    timestamp: int
    version: str = ""
    new_version: str = ""

    @property
    def subject(self) -> str:
        """Where it is published."""
        return subjects.event(self.type, self.component)


def encode_native(event: Event) -> bytes:
    """The native form: what the provisioner itself publishes (9.5)."""
    return dumps(_native(event)).encode()


def encode_cloud(event: Event) -> bytes:
    """The CloudEvent form: what servers publish by default (9.2)."""
    time = datetime.fromtimestamp(event.timestamp, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return dumps(
        {
            "specversion": "1.0",
            "id": event.id,
            "source": SOURCE,
            "type": PREFIX + event.type,
            "subject": event.identity,
            "datacontenttype": "application/json",
            "time": time,
            "data": _native(event),
        }
    ).encode()


def decode_event(data: bytes) -> Event:
    """Opens an event of either form.

    Raises:
        BadReply: neither form, an unknown type, or a field of the wrong type.
    """
    layer = Layer.decode(data, "event", limit=MAX_EVENT_BYTES)
    if layer.optional_text("specversion") == "1.0" and layer.optional_text("source") == SOURCE:
        layer = layer.layer("data")
    protocol = layer.text("protocol")
    type_ = protocol.removeprefix(PREFIX)
    if type_ == protocol or type_ not in TYPES:
        raise BadReply(f"the event is {shown(protocol)}, which is not known")
    timestamp = layer.integer("timestamp")
    if not 0 <= timestamp <= MAX_TIMESTAMP:
        raise BadReply("timestamp of the event is out of range")
    return Event(
        type=type_,
        id=layer.text("id"),
        identity=layer.text("identity"),
        component=layer.text("component"),
        timestamp=timestamp,
        version=layer.optional_text("version"),
        new_version=layer.optional_text("new_version"),
    )


def _native(event: Event) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "protocol": PREFIX + event.type,
        "id": event.id,
        "identity": event.identity,
        "component": event.component,
        "timestamp": event.timestamp,
    }
    if event.version:
        fields["version"] = event.version
    if event.new_version:
        fields["new_version"] = event.new_version
    return fields
