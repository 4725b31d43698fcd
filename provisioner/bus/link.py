"""What both buses share: whether there is a connection, and the requests that wait for an answer on it."""

import itertools
import logging
import re
from collections.abc import Callable

import trio
from attrs import define

from provisioner.bus.interface import Handler, Headers, Message
from provisioner.errors import BusError, ConnectionLost, NoReply, NoResponders, PermissionDenied

log = logging.getLogger(__name__)

_HEADER = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_LINE_ENDS = str.maketrans("\r\n", "  ")

NO_RESPONDERS = "503"
"""The status with which a server says that nobody listens on a subject."""


class Link:
    """Up or down, how often it came up, and those who wait for either."""

    def __init__(self) -> None:
        self.connected = False
        self.epoch = 0
        self._changed = trio.Event()

    def up(self) -> None:
        """There is a connection (or one whose subscriptions had a gap): a new epoch begins."""
        self.connected = True
        self.epoch += 1
        self._tell()

    def down(self) -> None:
        """The connection is gone."""
        self.connected = False
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def wait_connected(self) -> None:
        """Returns when there is a connection."""
        await trio.lowlevel.checkpoint()
        while not self.connected:
            await self._changed.wait()

    async def wait_epoch_change(self, epoch: int) -> int:
        """Returns the epoch as soon as it differs from ``epoch``."""
        await trio.lowlevel.checkpoint()
        while self.epoch == epoch:
            await self._changed.wait()
        return self.epoch


@define(eq=False)
class _Waiting:
    subject: str
    done: trio.Event
    answer: Message | None = None
    error: BusError | None = None
    suspect: str = ""


class Inbox:
    """One wildcard subscription for all answers of one connection, and who waits for which."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix + "."
        self._waiting: dict[str, _Waiting] = {}
        self._numbers = itertools.count(1)

    @property
    def pattern(self) -> str:
        """The subject to subscribe to."""
        return self._prefix + "*"

    @property
    def pending(self) -> int:
        """How many requests wait."""
        return len(self._waiting)

    def receive(self, message: Message) -> None:
        """Hands an answer to its request. The first counts; a late one is nobody's."""
        waiting = self._waiting.get(message.subject[len(self._prefix) :])
        if waiting and waiting.answer is None:
            waiting.answer = message
            waiting.done.set()

    def refuse(self, subject: str, text: str) -> None:
        """The server refused a publish to ``subject``, of which it tells only the lower-cased form.

        When requests to two subjects that differ only in case wait at once, either may be meant: they go on waiting,
        and the one that gets no answer was it.
        """
        meant = [waiting for waiting in self._waiting.values() if waiting.subject.lower() == subject.lower()]
        for waiting in meant:
            waiting.suspect = text
            if len({each.subject for each in meant}) == 1 and waiting.answer is None:
                waiting.error = PermissionDenied(text)
                waiting.done.set()

    def fail(self, reason: str) -> None:
        """The connection is gone: no answer can come any more."""
        for waiting in self._waiting.values():
            if waiting.answer is None and waiting.error is None:
                waiting.error = ConnectionLost(f"no answer on {waiting.subject}: {reason}")
                waiting.done.set()

    async def request(self, subject: str, send: Callable[[str], None], timeout: float) -> Message:
        """Sends by ``send(reply subject)`` and waits for the answer; the rest as ``Bus.request``."""
        await trio.lowlevel.checkpoint_if_cancelled()
        token = str(next(self._numbers))
        waiting = self._waiting[token] = _Waiting(subject, trio.Event())
        try:
            send(self._prefix + token)
            with trio.move_on_after(timeout):
                await waiting.done.wait()
        finally:
            del self._waiting[token]
        if waiting.answer is None:
            if waiting.error:
                raise waiting.error
            if waiting.suspect:
                raise PermissionDenied(waiting.suspect)
            raise NoReply(f"no answer on {subject} within {timeout:g} s")
        if waiting.answer.headers.get("Status") == NO_RESPONDERS and not waiting.answer.data:
            raise NoResponders(f"nobody listens on {subject}")
        return waiting.answer


def clean_headers(headers: Headers | None) -> dict[str, str]:
    """Headers as they travel: no value can end its line.

    Raises:
        ValueError: a name is not a token of HTTP.
    """
    for name in headers or ():
        if not _HEADER.fullmatch(name):
            raise ValueError(f"not a header: {name[:100]!r}")
    return {name: value.strip().translate(_LINE_ENDS) for name, value in (headers or {}).items()}


def message_size(data: bytes, headers: Headers) -> int:
    """How many bytes count against the server's limit: the headers do as well as the payload."""
    if not headers:
        return len(data)
    return len(data) + 12 + sum(len(key.encode()) + len(value.encode()) + 4 for key, value in headers.items())


def deliver(handler: Handler, message: Message) -> None:
    """Calls a handler. Whatever it raises is its own fault and ends nothing but this one message."""
    try:
        handler(message)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # the edge of one event; a stray CancelledError must not end the connection either
        log.exception("A message on %s was not handled", message.subject)
