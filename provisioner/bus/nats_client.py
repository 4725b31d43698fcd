"""nats-py's client for one connection to one server, less its reconnecting, with what it can't do itself.

It touches private methods of nats-py, hence the pinned version in ``pyproject.toml`` and a test for each.
"""

import asyncio
import base64
import json
import logging
import re
import ssl
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import trio
from nats import errors
from nats.aio.client import Client
from nats.protocol import command

from provisioner.bus.interface import Handler, Message
from provisioner.bus.link import deliver
from provisioner.bus.login import Credentials
from provisioner.errors import ConnectionLost, NoReply

log = logging.getLogger(__name__)

_NONCE = re.compile(r"[-_A-Za-z0-9]{1,128}")


class NatsClient(Client):
    """One connection.

    The private methods of nats-py that are changed:

    - ``_connect_command``: all credentials at once; nothing of them without the TLS that was asked for
    - ``_select_next_server``: one attempt, whose own error is the one that is reported
    - ``_read_loop``: whatever ends the reading ends the client, and is told
    - ``_process_msg``: messages go straight to their handlers; a subject that is no text is told as such,
      and headers that are none are left out, where nats-py would stop reading for good
    - ``_send_ping``: in order with what was published before, where nats-py's overtakes it
    """

    def __init__(self, credentials: Credentials, *, need_tls: bool, ended: Callable[["NatsClient"], None]) -> None:
        super().__init__()
        self._credentials = credentials
        self._need_tls = need_tls
        self._tell_end = ended
        self.ended = trio.Event()
        self._handlers: dict[int, Handler] = {}
        self._complained = False

    def _connect_command(self) -> bytes:
        options = json.loads(super()._connect_command().removeprefix(b"CONNECT "))
        given = self._credentials
        options["tls_required"] = self._need_tls
        for key, value in (
            ("user", given.user),
            ("pass", given.password.reveal()),
            ("auth_token", given.token.reveal()),
            ("jwt", given.jwt.reveal()),
        ):
            if value:
                options[key] = value
        nonce = self._server_info.get("nonce")
        if given.sign is not None and nonce:
            # The same key signs requests and tokens: whoever plays the server must not have those signed as nonces.
            if not (isinstance(nonce, str) and _NONCE.fullmatch(nonce)):
                raise errors.Error("nats: what the server sent to be signed is no nonce")
            options["sig"] = base64.urlsafe_b64encode(given.sign(nonce.encode())).rstrip(b"=").decode()
        return b"CONNECT " + json.dumps(options, sort_keys=True).encode() + b"\r\n"

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if initial_connection and self._need_tls:
            # Checked before the handshake, so that no credential leaves in clear text.
            if not (info.get("tls_required") or info.get("tls_available")):
                raise errors.Error("nats: the server does not offer TLS, which this configuration demands")
            info["tls_required"] = True
        await super()._process_info(info, initial_connection)

    async def _select_next_server(self) -> None:
        self._current_server = self._server_pool[0]
        await self._connect_to_server(self._current_server)

    async def _read_loop(self) -> None:
        try:
            await super()._read_loop()
        finally:
            if not self.ended.is_set():
                self.ended.set()
                self._tell_end(self)

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None) -> None:
        handler = self._handlers.get(sid)
        if handler is None:
            return
        try:
            found = await self._process_headers(headers)
        except (ValueError, IndexError):
            # Once: whoever sends one can send a million.
            log.log(
                logging.DEBUG if self._complained else logging.WARNING, "Headers that are not text: %.100r", subject
            )
            self._complained = True
            found = None
        # Not dropped: a watch would miss it for ever, and a hostile key could hide a whole bucket.
        deliver(handler, Message(_name(subject), data, _name(reply), found or {}))

    async def _send_ping(self, future: asyncio.Future[bool] | None = None) -> None:
        self._pongs.append(future or asyncio.get_running_loop().create_future())
        self.put(b"PING\r\n")

    def put(self, line: bytes) -> None:
        """Queues one protocol line behind all that was queued before."""
        _step(self._send_command(line))
        if self._flush_queue is not None and self._flush_queue.empty():
            _step(self._flush_pending())

    def take(self, subject: str, queue: str, handler: Handler) -> int:
        """Subscribes; gives the subscription's id."""
        self._sid += 1
        self._handlers[self._sid] = handler
        self.put(command.sub_cmd(subject, queue, self._sid))
        return int(self._sid)

    def drop(self, sid: int) -> None:
        """Ends a subscription."""
        del self._handlers[sid]
        self.put(command.unsub_cmd(sid, 0))

    def send(self, subject: str, data: bytes, reply: str, headers: dict[str, str]) -> None:
        """Publishes."""
        _step(self.publish(subject, data, reply, headers or None))

    def ping(self) -> trio.Event:
        """Asks for a sign that the server has seen all that was queued so far; the event tells it."""
        seen = trio.Event()
        # nats-py sets a result whatever the future's state: it must never be cancelled.
        future = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda _: seen.set())
        _step(self._send_ping(future))
        return seen

    async def leave(self) -> None:
        """Closes the connection, if it was ever made. May wait for ever for a server that has stopped reading."""
        if self._reading_task is not None:
            await self.close()

    def abort(self) -> None:
        """Cuts the connection without a word, so that nothing can wait for it any more."""
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            # Python 3.11.2 (Debian 12) takes a TLS transport that was closed twice apart, and then can't abort it.
            with suppress(AttributeError):
                writer.transport.abort()


def _step(work: Coroutine[Any, Any, Any]) -> None:
    """Runs a coroutine of nats-py that has nothing to wait for.

    With ``pending_size=0`` it can wait only when its flusher is gone, for a socket to drain; the bytes are already
    written then, so they must not be sent again.
    """
    try:
        work.send(None)
    except StopIteration:
        return
    work.close()


async def barrier(client: NatsClient, seen: trio.Event, timeout: float) -> None:
    """Waits for a pong, but not longer than the connection lives."""

    async def watch_end() -> None:
        await client.ended.wait()
        nursery.cancel_scope.cancel()

    with trio.move_on_after(timeout):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch_end)
            await seen.wait()
            nursery.cancel_scope.cancel()
    if seen.is_set():
        return
    if client.ended.is_set():
        raise ConnectionLost(why(client.last_error))
    raise NoReply(f"the server did not answer within {timeout:g} s")


def why(error: BaseException | None) -> str:
    """An error of a connection in words for an operator."""
    if error is None:
        return "the server closed the connection"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    if isinstance(error, (TimeoutError, trio.TooSlowError)):
        return "no answer in time"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    return str(error).removeprefix("nats: ").strip("' ") or type(error).__name__


def not_about_eof(record: logging.LogRecord) -> bool:
    """Drops what asyncio says at each end of each TLS connection: that a return value of its own has no effect."""
    return "eof_received" not in record.getMessage()


def _name(raw: bytes) -> str:
    """A subject as text; what is no UTF-8 gets a name that no other subject can have, since none holds a blank."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1") + " (not UTF-8)"
