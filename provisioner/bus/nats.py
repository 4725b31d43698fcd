"""NATS behind ``Bus``: nats-py on an asyncio loop inside Trio. The only module that knows either.

One connection after another, each a fresh nats-py client that never reconnects by itself: whatever ends it, expected
or not, is answered by the one loop in ``NatsBus._supervise``, which asks for servers and credentials anew, connects
with back-off and makes all subscriptions again. Nothing is buffered from one connection to the next.

Messages are handed to their handlers while they are parsed, in the order in which the server sent them, and published
by driving nats-py's coroutines by hand: neither costs a task switch.
"""

import logging
import random
import re
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import trio
import trio_asyncio
from attrs import define
from nats import errors

from provisioner.bus.background import beside, single
from provisioner.bus.interface import Handler, Headers, Message
from provisioner.bus.link import Inbox, Link, clean_headers, message_size
from provisioner.bus.login import Options, Resolve, public_url
from provisioner.bus.nats_client import NatsClient, barrier, not_about_eof, why
from provisioner.bus.subjects import check_subject
from provisioner.errors import BusError, ConnectionLost, NoReply, PermissionDenied, ProvisionerError, TooLarge

__all__ = ["NatsBus", "Options", "Resolve", "open_nats"]

log = logging.getLogger(__name__)

MAX_UNSENT = 64 * 1024 * 1024
"""Bytes that may wait for a server which has stopped reading; beyond it, publishing fails instead of filling memory."""
STABLE = 5.0
"""Seconds after which a connection counts as a good one: the first attempt after it is made without waiting."""
REFUSED_AGAIN = 5.0
"""Seconds between attempts to make a subscription again that the server has taken away."""
GRACE = 1.0
"""Seconds for each of the two steps of closing, flush and close, whatever the server does."""

_VIOLATION = re.compile(
    r'permissions violation for (publish|subscription) to "(.*?)"(?: using queue "(.*?)")?(?: \(sid "(\d+)"\))?'
)


@define(eq=False)
class _Subscription:
    subject: str
    queue: str
    handler: Handler
    sid: int = 0
    epoch: int = -1
    refused: str = ""


class NatsBus:
    """One supervised connection; a ``Bus``. Made by ``open_nats``."""

    def __init__(self, resolve: Resolve, options: Options, loop: trio_asyncio.TrioEventLoop) -> None:
        self.last_error = ""
        self._resolve = resolve
        self._options = options
        self._loop = loop
        self._link = Link()
        self._client: NatsClient | None = None
        self._url = ""
        self._max_payload = 1024 * 1024
        self._inbox = Inbox(self.new_inbox())
        self._answers = _Subscription(self._inbox.pattern, "", self._inbox.receive)
        self._subscriptions: dict[_Subscription, None] = {self._answers: None}

    @property
    def connected(self) -> bool:
        """See ``Bus``."""
        return self._link.connected

    @property
    def url(self) -> str:
        """See ``Bus``."""
        return self._url

    @property
    def max_payload(self) -> int:
        """See ``Bus``."""
        return self._max_payload

    @property
    def epoch(self) -> int:
        """See ``Bus``."""
        return self._link.epoch

    @property
    def pending_requests(self) -> int:
        """How many requests wait for an answer."""
        return self._inbox.pending

    # --- what a user of the bus does -------------------------------------------------------------------------------

    def publish(self, subject: str, data: bytes, *, reply: str = "", headers: Headers | None = None) -> None:
        """See ``Bus``."""
        check_subject(subject)
        if reply:
            check_subject(reply)
        sent = clean_headers(headers)
        client = self._connection()
        size = message_size(data, sent)
        if size > self._max_payload:
            raise TooLarge(f"{size} bytes to {subject}: the server takes {self._max_payload}")
        if client.pending_data_size > MAX_UNSENT:
            raise ConnectionLost(f"{self._url} has stopped reading: {client.pending_data_size} bytes wait for it")
        with self._at_work():
            client.send(subject, data, reply, sent)

    async def flush(self, timeout: float = 5.0) -> None:
        """See ``Bus``."""
        await trio.lowlevel.checkpoint_if_cancelled()
        client = self._connection()
        with self._at_work():
            seen = client.ping()
        await barrier(client, seen, timeout)
        if client is not self._client:
            raise ConnectionLost(self.last_error)

    @asynccontextmanager
    async def subscribe(self, subject: str, handler: Handler, *, queue: str = "") -> AsyncIterator[None]:
        """See ``Bus``."""
        check_subject(subject, pattern=True)
        if queue:
            check_subject(queue)
        wanted = _Subscription(subject, queue, handler)
        self._subscriptions[wanted] = None
        try:
            await self._establish(wanted)
            yield
        finally:
            del self._subscriptions[wanted]
            if self._client is not None and wanted.epoch == self.epoch:
                with self._at_work():
                    self._client.drop(wanted.sid)

    async def request(self, subject: str, data: bytes, *, timeout: float, headers: Headers | None = None) -> Message:
        """See ``Bus``."""

        def send(reply: str) -> None:
            if self._answers.refused:
                raise PermissionDenied(f"no answer could arrive: {self._answers.refused}")
            self.publish(subject, data, reply=reply, headers=headers)

        return await self._inbox.request(subject, send, timeout)

    async def wait_connected(self) -> None:
        """See ``Bus``."""
        await self._link.wait_connected()

    async def wait_epoch_change(self, epoch: int) -> int:
        """See ``Bus``."""
        return await self._link.wait_epoch_change(epoch)

    def new_inbox(self) -> str:
        """See ``Bus``."""
        return f"{self._options.inbox_prefix}.{secrets.token_hex(11)}"

    # --- one connection --------------------------------------------------------------------------------------------

    def _connection(self) -> NatsClient:
        if self._client is None:
            raise ConnectionLost(self.last_error or "not connected yet")
        return self._client

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """Lets any task of this thread drive nats-py, also one that was started outside of ``open_nats``."""
        token = trio_asyncio.current_loop.set(self._loop)
        try:
            yield
        except (errors.Error, OSError) as error:
            raise ConnectionLost(why(error)) from error
        finally:
            trio_asyncio.current_loop.reset(token)

    def _take(self, client: NatsClient, wanted: _Subscription, epoch: int) -> None:
        with self._at_work():
            if wanted.epoch == epoch:
                client.drop(wanted.sid)
            wanted.refused, wanted.epoch = "", epoch
            wanted.sid = client.take(wanted.subject, wanted.queue, wanted.handler)

    async def _establish(self, wanted: _Subscription) -> None:
        while True:
            await self._link.wait_connected()
            try:
                client = self._connection()
                if wanted.epoch != self.epoch:
                    self._take(client, wanted, self.epoch)
                await self.flush()
            except (ConnectionLost, NoReply):
                if client is self._client:
                    raise
                continue
            if wanted.refused:
                raise PermissionDenied(wanted.refused)
            return

    def _ended(self, client: NatsClient) -> None:
        if client is not self._client:
            return
        self._client = None
        self.last_error = f"{self._url}: {why(client.last_error)}"
        log.warning("Lost the connection to %s", self.last_error)
        self._link.down()
        self._inbox.fail(self.last_error)

    async def _complain(self, error: Exception) -> None:
        """What nats-py tells while it lives: failed attempts, which are reported elsewhere, and refusals."""
        text = why(error)
        found = _VIOLATION.search(text)
        if not found:
            log.debug("nats-py reports: %s", text)
            return
        kind, subject, queue, sid = found.groups()
        log.log(logging.DEBUG if text == self.last_error else logging.WARNING, "The server refuses: %s", text)
        self.last_error = text
        if kind == "publish":
            self._inbox.refuse(subject, text)
            return
        for wanted in self._subscriptions:
            # Older servers tell no id, and the subject only in lower case.
            same = wanted.subject.lower() == subject and wanted.queue.lower() == (queue or "")
            if wanted.sid == int(sid) if sid else same:
                wanted.refused = text

    async def _supervise(self) -> None:
        delays = self._options.delays()
        pause = 0.0
        while True:
            client = await self._connect_to_any()
            if client is not None:
                since = trio.current_time()
                await self._serve(client)
                if trio.current_time() - since >= STABLE:
                    delays = self._options.delays()
                    continue
            pause = next(delays, pause)
            await trio.sleep(pause)

    async def _connect_to_any(self) -> NatsClient | None:
        try:
            servers = list(await self._resolve())
        except (ProvisionerError, OSError) as error:
            self._failed(f"no server is known: {error}")
            return None
        random.shuffle(servers)
        for url in servers:
            try:
                return await self._connect(url)
            except Exception as error:  # noqa: BLE001 - the edge of one attempt: whatever that server sent or did
                self._failed(f"{public_url(url)}: {self._options.explain(why(error))}")
        if not servers:
            self._failed("no server is known")
        return None

    def _failed(self, text: str) -> None:
        # Once for each reason: an outage of a night is not a log full of the same line.
        level = logging.DEBUG if text == self.last_error else logging.WARNING
        self.last_error = text
        log.log(level, "Not connected: %s; trying again", text)

    async def _connect(self, url: str) -> NatsClient:
        options = self._options
        credentials = options.credentials()
        context = options.tls() if options.tls else None
        client = NatsClient(credentials, need_tls=context is not None, ended=self._ended)
        ready = False
        try:
            # nats-py bounds each step, but not their sum.
            with trio.fail_after(3 * options.connect_timeout):
                await trio_asyncio.aio_as_trio(client.connect, loop=self._loop)(
                    [url],
                    name=options.name,
                    tls=context,
                    user_credentials=credentials.creds_file and str(credentials.creds_file),
                    error_cb=self._complain,
                    allow_reconnect=False,
                    connect_timeout=options.connect_timeout,
                    ping_interval=options.ping_interval,
                    pending_size=0,
                )
                if not client.is_connected:
                    raise errors.Error("nats: the server neither took nor refused the connection")
                await self._set_up(client)
            if client.ended.is_set():
                raise client.last_error or errors.UnexpectedEOF()
            ready = True
        finally:
            if not ready:
                await self._close(client)
        self._client = client
        self._url = public_url(url)
        self._max_payload = client.max_payload
        self.last_error = self._answers.refused
        log.info("Connected to %s", self._url)
        self._link.up()
        return client

    async def _set_up(self, client: NatsClient) -> None:
        for wanted in self._subscriptions:
            self._take(client, wanted, self.epoch + 1)
        with self._at_work():
            seen = client.ping()
        await barrier(client, seen, self._options.connect_timeout)

    async def _serve(self, client: NatsClient) -> None:
        try:
            while not client.ended.is_set():
                with trio.move_on_after(REFUSED_AGAIN):
                    await client.ended.wait()
                    break
                await self._ask_again(client)
        finally:
            await self._close(client)

    async def _ask_again(self, client: NatsClient) -> None:
        refused = [wanted for wanted in self._subscriptions if wanted.refused and wanted.epoch == self.epoch]
        if not refused:
            return
        try:
            for wanted in refused:
                self._take(client, wanted, self.epoch)
            await self.flush()
        except (ConnectionLost, NoReply):
            return
        if granted := [wanted for wanted in refused if not wanted.refused]:
            log.warning("The server grants again: %s", ", ".join(wanted.subject for wanted in granted))
            self.last_error = next((wanted.refused for wanted in self._subscriptions if wanted.refused), "")
            for wanted in self._subscriptions:
                wanted.epoch += wanted.epoch == self.epoch
            self._link.up()

    async def _close(self, client: NatsClient) -> None:
        with trio.CancelScope(shield=True):
            if client is not self._client:
                client.abort()  # never in use, or gone already: there is nobody to be polite to
            else:
                with trio.move_on_after(GRACE):
                    try:
                        await self.flush()
                    except BusError:
                        log.debug("What was published last may not have arrived")
            if client is self._client:
                self._client = None
                self._link.down()
                self._inbox.fail("the bus is closed")
            with trio.move_on_after(GRACE):
                await trio_asyncio.aio_as_trio(client.leave, loop=self._loop)()
            client.abort()


def _on_loop_error(_loop: trio_asyncio.TrioEventLoop, context: dict[str, Any]) -> None:
    """An asyncio task of nats-py failed unseen. The default would end the whole program for it."""
    log.error("Within nats-py: %s", context.get("message"), exc_info=context.get("exception"))


@asynccontextmanager
async def open_nats(resolve: Resolve, options: Options | None = None) -> AsyncIterator[NatsBus]:
    """Opens a bus on NATS. It yields at once, not connected, and connects as soon as it can: see ``wait_connected``.

    Args:
        resolve: gives the URLs of the servers, asked before each round of attempts; their order doesn't matter. It may
            raise ``ProvisionerError`` or ``OSError``: then this round has failed.
        options: how to connect.

    Yields:
        The bus, of use to any task of this Trio thread while the context is open. Leaving takes at most a few seconds
        whatever the server does; what was published before is flushed if the server takes it.
    """
    chatter = logging.getLogger("asyncio")
    chatter.addFilter(not_about_eof)
    failure: BaseException | None = None
    try:
        async with trio_asyncio.open_loop() as loop:
            loop.set_exception_handler(_on_loop_error)
            bus = NatsBus(resolve, options or Options(), loop)
            try:
                async with beside(bus._supervise):  # noqa: SLF001 - one thing in two parts
                    yield bus
            except trio.Cancelled:
                raise
            except BaseException as error:  # noqa: BLE001 - raised again below: the loop would wrap it twice
                failure = error
    except BaseExceptionGroup as group:
        raise single(group) from None
    finally:
        chatter.removeFilter(not_about_eof)
    if failure is not None:
        raise failure
