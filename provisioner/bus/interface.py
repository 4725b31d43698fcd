"""What this project asks of a message bus: one small seam, two implementations (``bus.nats``, ``bus.memory``).

Handlers are synchronous and run in the event loop as each message arrives: a burst of ten thousand discovery replies
costs ten thousand calls, not as many task switches, and no queue can overflow unseen. A handler must not block; what it
raises is logged and counted, and never reaches the connection.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from attrs import field, frozen

Headers = Mapping[str, str]


@frozen
class Message:
    """One message from the bus. ``reply`` is the NATS reply subject or ``""``; ``headers`` may be empty."""

    subject: str
    data: bytes
    reply: str = ""
    headers: Headers = field(factory=dict)


Handler = Callable[[Message], None]


class Bus(Protocol):
    """One shared connection. All methods belong to the Trio thread that opened it."""

    @property
    def connected(self) -> bool:
        """Whether there is a connection at this moment."""
        ...

    @property
    def url(self) -> str:
        """The server in use, such as ``nats://broker.example.net:4222``, without credentials; ``""`` before any."""
        ...

    @property
    def last_error(self) -> str:
        """Why there is no connection, or what the server refused last, for an operator; ``""`` when all is well."""
        ...

    @property
    def max_payload(self) -> int:
        """The server's limit for one message, in bytes (from its latest INFO)."""
        ...

    @property
    def epoch(self) -> int:
        """How many times a connection was made: it grows with each reconnect. What was sent before may be lost."""
        ...

    def publish(self, subject: str, data: bytes, *, reply: str = "", headers: Headers | None = None) -> None:
        """Hands one message to the connection, at once and in order.

        Raises:
            ConnectionLost: there is no connection; nothing is kept to be sent later.
            TooLarge: the payload is over ``max_payload``; nothing was sent.
            ValueError: the subject is empty, has white space, a wildcard or an empty token; or a header a bad name.
        """
        ...

    async def flush(self, timeout: float = 5.0) -> None:
        """Waits until the server has seen all that was published.

        Raises:
            ConnectionLost: it went away meanwhile.
            NoReply: no answer within ``timeout`` seconds.
        """
        ...

    def subscribe(self, subject: str, handler: Handler, *, queue: str = "") -> AbstractAsyncContextManager[None]:
        """Calls ``handler`` for each message while the context is open; survives reconnects.

        The server knows the subscription before the context is entered: without a connection, entering waits for
        one. A subscription that the server refuses later (a permission taken away) is logged, kept in ``last_error``
        and asked for again until it is granted; then ``epoch`` grows, since messages may have been missed.

        Raises:
            PermissionDenied: the server refuses the subscription (while it is being made).
            ValueError: not a subject, or the queue's name has white space.
        """
        ...

    async def request(self, subject: str, data: bytes, *, timeout: float, headers: Headers | None = None) -> Message:
        """Publishes with a reply subject of our own and waits for the first answer.

        A request in a scope that is already cancelled is not sent.

        Raises:
            NoReply: nothing came within ``timeout`` seconds; NoResponders at once when nobody listens.
            PermissionDenied: the server refused the publish.
            ConnectionLost: there is no connection, or it went away while waiting.
            TooLarge: the payload is over the limit.
        """
        ...

    async def wait_connected(self) -> None:
        """Returns when there is a connection."""
        ...

    async def wait_epoch_change(self, epoch: int) -> int:
        """Returns the new epoch as soon as it differs from ``epoch``: subscriptions may have missed messages."""
        ...

    def new_inbox(self) -> str:
        """A subject that nobody else uses, below the prefix that this connection may subscribe to."""
        ...
