"""The HTTP page of a service on ``monitor_port``: metrics, health, status. Small on purpose, and open to strangers.

It listens as the Go program does, on every address, so anybody who reaches the port may send anything. Therefore: one
request a connection, GET and HEAD only, a bounded header, a deadline on each connection, a bounded number of them, and
the parsing is h11's. Pages that show more than numbers are marked ``loopback_only``.
"""

import errno
import ipaddress
import logging
import socket
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Protocol
from urllib.parse import urlsplit

import h11
import trio
from attrs import frozen
from prometheus_client import CollectorRegistry

from provisioner.errors import ConfigError, Fault
from provisioner.metrics import CONTENT_TYPE, exposition
from provisioner.version import __version__

log = logging.getLogger(__name__)

MAX_HEADER_BYTES = 16 * 1024
"""What Prometheus and browsers send is under 2 KiB."""

MAX_CONNECTIONS = 64
"""At once; one more is told 503. Each may cost MAX_HEADER_BYTES and one file descriptor."""

MAX_SECONDS = 10.0
"""For the whole of one connection, request and answer: a slow reader or writer holds its place no longer."""


@frozen
class Request:
    """One GET or HEAD. ``path`` is as sent, without the query; ``query`` is without its question mark."""

    path: str
    query: str = ""


@frozen
class Response:
    """What a route answers. ``headers`` come beside the ones that every answer has."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()


@frozen
class Route:
    """One page. ``answer`` runs in the event loop and must be quick; what it raises ends the service, as a bug.

    ``loopback_only`` refuses (403) whoever is not on this machine, and a browser on this machine that was led here
    under a foreign host name.
    """

    answer: Callable[[Request], Response]
    loopback_only: bool = False


class Started(Protocol):
    """The part of ``trio.TaskStatus`` that ``serve`` uses; its value is the port."""

    def started(self, value: int, /) -> None:
        """Says that the port is open."""


def metrics_route(registry: CollectorRegistry) -> Route:
    """The page ``/metrics``: the same text whatever the ``Accept`` header."""
    return Route(lambda _: Response(exposition(registry), CONTENT_TYPE))


async def serve(
    port: int,
    routes: Mapping[str, Route],
    *,
    host: str | None = None,
    file: str = "",
    key: str = "monitor_port",
    task_status: Started = trio.TASK_STATUS_IGNORED,
) -> None:
    """Answers on ``port`` until it is cancelled; open connections are then cut.

    Args:
        port: TCP port; 0 takes a free one.
        routes: the page for each path, such as ``/metrics``.
        host: an address to listen on; None for every IPv4 and IPv6 address.
        file: the configuration file that an error names.
        key: the configuration key that an error names.
        task_status: is told the port once connections are accepted.

    Raises:
        ConfigError: the port can't be had.
    """
    try:
        listeners = await _listen(port, host)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError([Fault(file, key, f"can't listen on this port: {reason}", str(port))]) from None
    site = _Site(routes)
    task_status.started(listeners[0].socket.getsockname()[1])
    await trio.serve_listeners(site.connection, listeners)


async def _listen(port: int, host: str | None) -> list[trio.SocketListener]:
    if host is not None:
        return await trio.open_tcp_listeners(port, host=host)
    # IPv4 first: with port 0 both must get the same number. A machine without IPv6 is served on IPv4 alone.
    listeners = await trio.open_tcp_listeners(port, host="0.0.0.0")  # noqa: S104 - as the Go program
    port = listeners[0].socket.getsockname()[1]
    try:
        listeners += await trio.open_tcp_listeners(port, host="::")
    except (OSError, socket.gaierror) as error:
        if error.errno not in {errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, socket.EAI_ADDRFAMILY, socket.EAI_FAMILY}:
            for listener in listeners:
                listener.socket.close()
            raise
    return listeners


class _Site:
    """The routes, and how many connections are open."""

    def __init__(self, routes: Mapping[str, Route]) -> None:
        self.routes = routes
        self.open = 0

    async def connection(self, stream: trio.SocketStream) -> None:
        self.open += 1
        try:
            with trio.move_on_after(MAX_SECONDS):
                await self._exchange(stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError, h11.ProtocolError):
            pass  # the peer went away, or can't be answered any more
        finally:
            self.open -= 1

    async def _exchange(self, stream: trio.SocketStream) -> None:
        http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEADER_BYTES)
        if self.open > MAX_CONNECTIONS:
            await stream.send_all(_rendered(http, _plain(503, "too many connections")))
            return
        try:
            request = await _read_request(http, stream)
        except h11.RemoteProtocolError as error:
            response, head = _plain(error.error_status_hint, "this is no HTTP/1.1 request that is served here"), False
        else:
            if isinstance(request, h11.ConnectionClosed):
                return
            response, head = self._answer(request, _peer(stream)), request.method == b"HEAD"
        await stream.send_all(_rendered(http, response, head=head))
        # Bytes left unread would make the kernel reset the connection, and the answer with it.
        await stream.send_eof()
        while await stream.receive_some(MAX_HEADER_BYTES):
            pass

    def _answer(self, request: h11.Request, peer: str) -> Response:
        if request.method not in {b"GET", b"HEAD"}:
            return _plain(405, "only GET and HEAD are served here", ("Allow", "GET, HEAD"))
        headers = dict(request.headers)
        if b"content-length" in headers or b"transfer-encoding" in headers:
            return _plain(413, "a request with a body is not taken")
        path, _, query = request.target.decode("latin-1").partition("?")
        route = self.routes.get(path)
        if route is None:
            return _plain(404, "no such page; there are: " + " ".join(sorted(self.routes)))
        if route.loopback_only and not (_is_loopback(peer) and _is_loopback(_host(headers.get(b"host", b"")))):
            return _plain(403, "this page is shown on this machine only: ask for it under localhost")
        return route.answer(Request(path, query))


async def _read_request(http: h11.Connection, stream: trio.SocketStream) -> h11.Request | h11.ConnectionClosed:
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(await stream.receive_some(MAX_HEADER_BYTES))
        elif isinstance(event, h11.Request | h11.ConnectionClosed):
            return event


def _rendered(http: h11.Connection, response: Response, *, head: bool = False) -> bytes:
    headers = [
        ("Content-Type", response.content_type),
        ("Content-Length", str(len(response.body))),
        ("Connection", "close"),
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
        ("Server", f"provisioner/{__version__}"),
        *response.headers,
    ]
    out = (
        http.send(h11.Response(status_code=response.status, headers=headers, reason=HTTPStatus(response.status).phrase))
        or b""
    )
    if not head:
        out += http.send(h11.Data(data=response.body)) or b""
    return out


def _plain(status: int, text: str, *headers: tuple[str, str]) -> Response:
    return Response(f"{text}\n".encode(), status=status, headers=headers)


def _peer(stream: trio.SocketStream) -> str:
    try:
        return str(stream.socket.getpeername()[0])
    except OSError:
        return ""


def _host(header: bytes) -> str:
    try:
        return urlsplit("//" + header.decode("latin-1")).hostname or ""
    except ValueError:
        return ""


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
