"""The HTTP page over real sockets on loopback: what a scraper, a browser and a stranger get from it."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import h11
import pytest
import trio
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from provisioner import monitor
from provisioner.errors import ConfigError
from provisioner.metrics import CONTENT_TYPE, Metrics
from provisioner.monitor import Request, Response, Route, metrics_route

PROMETHEUS_ACCEPT = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
"""What Prometheus 3 sends."""


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


HAS_IPV6 = _has_ipv6()


def echo(request: Request) -> Response:
    return Response(f"{request.path}|{request.query}".encode())


@asynccontextmanager
async def page(**more: Route) -> AsyncIterator[int]:
    """A running page with ``/echo`` and, as ``/name``, each route of ``more``; gives its port."""
    routes = {"/echo": Route(echo), **{f"/{name}": route for name, route in more.items()}}
    async with trio.open_nursery() as nursery:
        yield await nursery.start(partial(monitor.serve, 0, routes, host="127.0.0.1"))
        nursery.cancel_scope.cancel()


async def exchange(port: int, sent: bytes, host: str = "127.0.0.1") -> tuple[int, dict[str, str], bytes]:
    """Sends ``sent`` on a fresh connection and reads until the page closes it."""
    with trio.fail_after(30):
        async with await trio.open_tcp_stream(host, port) as stream:
            await stream.send_all(sent)
            answer = b""
            while chunk := await stream.receive_some():
                answer += chunk
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *rest = head.decode().split("\r\n")
    return int(first.split()[1]), {k.lower(): v for k, v in (line.split(": ", 1) for line in rest)}, body


def get(path: str, *headers: str, host: str = "localhost", method: str = "GET") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", f"Host: {host}", *headers, "", ""]).encode()


async def test_a_page_is_found_with_its_query() -> None:
    async with page() as port:
        status, headers, body = await exchange(port, get("/echo?name=n1"))
    assert (status, body) == (200, b"/echo|name=n1")
    assert headers["content-type"] == "text/plain; charset=utf-8"
    assert headers["content-length"] == str(len(body))
    assert headers["connection"] == "close"
    assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize("accept", [PROMETHEUS_ACCEPT, "*/*", "text/html", "application/openmetrics-text", ""])
async def test_prometheus_gets_the_plain_format_whatever_it_accepts(accept: str) -> None:
    metrics = Metrics(CollectorRegistry(), "london")
    metrics.provisioned.inc(3)
    async with page(metrics=metrics_route(metrics.registry)) as port:
        status, headers, body = await exchange(port, get("/metrics", f"Accept: {accept}", "Accept-Encoding: gzip"))
    assert (status, headers["content-type"]) == (200, CONTENT_TYPE)
    assert "version=0.0.4" in CONTENT_TYPE
    found = {
        family.name: sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }
    assert found["choria_provisioner_provisioned"] == 3


async def test_head_is_get_without_the_body() -> None:
    async with page() as port:
        status, headers, body = await exchange(port, get("/echo", method="HEAD"))
    assert (status, headers["content-length"], body) == (200, "6", b"")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "FOO"])
async def test_other_methods_are_405(method: str) -> None:
    async with page() as port:
        status, headers, _ = await exchange(port, get("/echo", method=method))
    assert (status, headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("path", ["/", "/nope", "/echo/", "//echo", "/../echo", "/%65cho", "http://x/echo", "*"])
async def test_other_paths_are_404(path: str) -> None:
    async with page() as port:
        status, _, body = await exchange(port, get(path))
    assert (status, body) == (404, b"no such page; there are: /echo\n")


async def test_http_1_0_without_host_is_served() -> None:
    async with page() as port:
        status, _, body = await exchange(port, b"GET /echo HTTP/1.0\r\n\r\n")
    assert (status, body) == (200, b"/echo|")


HOSTILE = {
    "garbage": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    "an endless header": (b"GET /echo HTTP/1.1\r\nX: " + b"a" * 20_000, 431),
    "too many headers": (b"GET /echo HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 20_000 + b"\r\n", 431),
    "no host": (b"GET /echo HTTP/1.1\r\n\r\n", 400),
    "two hosts": (b"GET /echo HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
    "a bare newline in a name": (b"GET /echo HTTP/1.1\r\nHost: a\r\nX\n: b\r\n\r\n", 400),
    "a nul in a value": (b"GET /echo HTTP/1.1\r\nHost: a\r\nX: \0\r\n\r\n", 400),
    "lengths that differ": (get("/echo", "Content-Length: 3", "Content-Length: 5"), 400),
    "a body": (get("/echo", "Content-Length: 3") + b"abc", 413),
    "a chunked body": (get("/echo", "Transfer-Encoding: chunked") + b"3\r\nabc\r\n0\r\n\r\n", 413),
    "both lengths": (get("/echo", "Transfer-Encoding: chunked", "Content-Length: 3") + b"abc", 413),
    "an encoding unheard of": (get("/echo", "Transfer-Encoding: gzip"), 501),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 405),
    "two requests at once": (get("/echo") + get("/echo"), 200),
    "a length of thousands of digits": (get("/echo", "Content-Length: " + "9" * 6000), 400),
}


@pytest.mark.parametrize("kind", HOSTILE)
async def test_a_hostile_request_gets_an_answer_and_the_next_visitor_too(kind: str) -> None:
    sent, wanted = HOSTILE[kind]
    async with page() as port:
        status, headers, _ = await exchange(port, sent)
        assert (status, headers["connection"]) == (wanted, "close")
        assert (await exchange(port, get("/echo")))[0] == 200


async def test_peers_that_vanish_do_no_harm() -> None:
    async with page(big=Route(lambda _: Response(b"x" * 8_000_000))) as port:
        for sent in (b"", b"GET", get("/echo"), get("/big")):
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            # A reset instead of an orderly end.
            stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
            if sent:
                await stream.send_all(sent)
            await stream.aclose()
        assert (await exchange(port, get("/echo")))[0] == 200


async def test_the_number_of_connections_is_bounded() -> None:
    async with page() as port:
        idle = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(monitor.MAX_CONNECTIONS)]
        status, _, body = await exchange(port, b"")
        assert (status, body) == (503, b"too many connections\n")
        for stream in idle:
            await stream.aclose()
        with trio.fail_after(30):
            while (await exchange(port, get("/echo")))[0] != 200:
                await trio.lowlevel.checkpoint()


async def test_a_silent_peer_is_cut_after_its_time(autojump_clock: trio.testing.MockClock) -> None:
    near, far = trio.testing.memory_stream_pair()
    site = monitor._Site({})
    started = trio.current_time()
    await site.connection(far)  # type: ignore[arg-type]
    assert trio.current_time() - started == monitor.MAX_SECONDS
    assert site.open == 0
    await near.aclose()


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("localhost:8080", 200),
        ("127.0.0.1", 200),
        ("127.9.9.9:1", 200),
        ("[::1]:8080", 200),
        ("evil.example.net", 403),
        ("10.0.0.1", 403),
        ("localhost.evil.example.net", 403),
        ("[", 403),
        ("", 403),
    ],
)
async def test_a_private_page_is_refused_under_a_foreign_name(host: str, status: int) -> None:
    async with page(status=Route(echo, loopback_only=True)) as port:
        assert (await exchange(port, get("/status", host=host)))[0] == status


@pytest.mark.parametrize(
    ("peer", "status"),
    [("127.0.0.1", 200), ("::1", 200), ("::ffff:127.0.0.1", 200), ("10.0.0.1", 403), ("fe80::1%eth0", 403), ("", 403)],
)
def test_a_private_page_is_refused_to_other_machines(peer: str, status: int) -> None:
    site = monitor._Site({"/status": Route(echo, loopback_only=True)})
    request = h11.Request(method="GET", target="/status", headers=[("Host", "localhost")])
    assert site._answer(request, peer).status == status


async def test_every_address_is_listened_on_with_one_port() -> None:
    async with trio.open_nursery() as nursery:
        port = await nursery.start(monitor.serve, 0, {"/echo": Route(echo)})
        assert (await exchange(port, get("/echo")))[0] == 200
        if HAS_IPV6:
            assert (await exchange(port, get("/echo"), host="::1"))[0] == 200
        nursery.cancel_scope.cancel()


async def test_a_port_in_use_is_the_operators_to_set_right() -> None:
    async with page() as port:
        with pytest.raises(ConfigError) as caught:
            await monitor.serve(port, {}, host="127.0.0.1", file="/etc/p.yaml")
    assert (
        str(caught.value)
        == f"/etc/p.yaml: monitor_port: can't listen on this port: Address already in use (found {port})"
    )


async def test_a_port_in_use_by_another_is_seen_on_the_wildcard_too() -> None:
    async with page() as port:
        with pytest.raises(ConfigError, match="monitor_port"):
            await monitor.serve(port, {})


async def test_a_route_with_a_bug_is_not_hidden() -> None:
    def broken(_: Request) -> Response:
        raise KeyError("bug")

    async def visit() -> None:
        async with page(broken=Route(broken)) as port, await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(get("/broken"))
            await trio.sleep_forever()

    with pytest.raises(BaseExceptionGroup) as caught:
        await visit()
    assert caught.group_contains(KeyError, match="bug")
