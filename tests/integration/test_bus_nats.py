"""The NATS bus under every fault that a server, a network or an operator can make."""

import asyncio
import json
import logging
import os
import signal
import ssl
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest
import trio
import trio.lowlevel

from provisioner.bus.interface import Message
from provisioner.bus.login import Credentials, Options, steady_delays
from provisioner.bus.nats import NatsBus, open_nats
from provisioner.errors import ConnectionLost, NoReply, PermissionDenied, TooLarge
from provisioner.secret import Secret
from provisioner.simulator.embedded import NatsServer, nats_server
from tests.integration.buses import at, connected, quick, user
from tests.integration.nats_faults import (
    Authority,
    NKey,
    Operator,
    freeze,
    info,
    odd_server,
    read_until,
    reload,
    tls_config,
)
from tests.integration.test_bus_conformance import Heard


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - one string a name is enough


@pytest.fixture(autouse=True)
async def nothing_from_asyncio(caplog: pytest.LogCaptureFixture) -> AsyncIterator[None]:
    """No test may make asyncio complain, or leave a file descriptor."""
    before = descriptors()
    yield
    assert not [record for record in caplog.records if record.name == "asyncio"]
    assert "Within nats-py" not in caplog.text
    with trio.fail_after(10):
        while descriptors() > before:
            await trio.sleep(0.05)


async def until_down(bus: NatsBus) -> None:
    with trio.fail_after(20):
        while bus.connected:
            await trio.sleep(0.01)


async def until_said(bus: NatsBus, text: str) -> None:
    with trio.fail_after(20):
        while text not in bus.last_error:
            await trio.sleep(0.01)


# --- coming and going ----------------------------------------------------------------------------------------------


async def test_it_yields_at_once_and_connects_when_there_is_a_server(nats: NatsServer) -> None:
    await nats.kill()
    async with open_nats(at(nats), Options(delays=quick)) as bus:
        assert (bus.connected, bus.epoch, bus.url) == (False, 0, "")
        with pytest.raises(ConnectionLost, match="not connected yet"):
            bus.publish("a", b"")
        await until_said(bus, "refused")
        with pytest.raises(ConnectionLost, match=rf"127\.0\.0\.1:{nats.port}: connection refused"):
            await bus.request("a", b"", timeout=60)
        heard = Heard()

        async def listen(task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
            async with bus.subscribe("a", heard):
                task_status.started()
                await heard.count(1)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen)
            await trio.testing.wait_all_tasks_blocked(0.0)
            await nats.start()
            with trio.fail_after(20):
                await bus.wait_connected()
            assert (bus.url, bus.epoch, bus.last_error) == (nats.url, 1, "")
            await trio.lowlevel.checkpoint()
            with trio.fail_after(20):
                while not heard.messages:
                    bus.publish("a", b"")
                    await trio.sleep(0.02)


async def test_leaving_is_bounded_when_the_server_is_stopped(nats: NatsServer) -> None:
    assert nats.process is not None
    with trio.fail_after(10):
        async with connected(at(nats)) as bus:
            await freeze(nats)
            for _ in range(64):
                bus.publish("a", b"x" * 200_000)  # more than the sockets take
    nats.process.send_signal(signal.SIGCONT)


async def test_publishing_to_a_server_that_stopped_reading_fails_before_memory_is_full(nats: NatsServer) -> None:
    assert nats.process is not None
    async with connected(at(nats)) as bus:
        await freeze(nats)
        with pytest.raises(ConnectionLost, match="has stopped reading"):  # noqa: PT012 - which of them it is
            for _ in range(200):
                bus.publish("a", b"x" * 1_000_000)
        with pytest.raises(NoReply, match=r"did not answer within 0\.2 s"):
            await bus.flush(0.2)
    nats.process.send_signal(signal.SIGCONT)


async def test_a_stopped_server_is_given_up_for_another(nats: NatsServer) -> None:
    assert nats.process is not None
    async with nats_server() as other:
        urls = [nats.url]

        async def resolve() -> Sequence[str]:
            return urls

        async with connected(resolve, Options(delays=quick, ping_interval=0.3)) as bus:
            heard = Heard()
            async with bus.subscribe("a", heard):
                await freeze(nats)
                urls[:] = [other.url]
                with trio.fail_after(20), pytest.raises(ConnectionLost, match="stale"):
                    await bus.request("a.b", b"", timeout=60)
                with trio.fail_after(20):
                    await bus.wait_connected()
                assert bus.url == other.url
                bus.publish("a", b"")
                await heard.count(1)
        nats.process.send_signal(signal.SIGCONT)


async def test_what_was_published_before_leaving_arrives(nats: NatsServer) -> None:
    heard = Heard()
    async with connected(at(nats)) as listener, listener.subscribe("last.words", heard):
        async with connected(at(nats)) as bus:
            for _ in range(100):
                bus.publish("last.words", b"x" * 1000)
        await heard.count(100)


async def test_a_flush_is_behind_all_that_was_published_before() -> None:
    """nats-py's own PING overtakes what waits to be sent, and is no proof of anything then."""
    got = b""

    async def serve(stream: trio.SocketStream) -> None:
        nonlocal got
        await stream.send_all(info())
        while more := await stream.receive_some(65536):
            got += more
            if got.endswith(b"PING\r\n"):
                await stream.send_all(b"PONG\r\n" * more.count(b"PING\r\n"))

    async with odd_server(serve) as odd:

        async def resolve() -> Sequence[str]:
            return [odd]

        async with connected(resolve) as bus:
            got = b""
            for _ in range(3):
                bus.publish("a", b"x")
            await bus.flush()
            assert got == b"PUB a  1\r\nx\r\n" * 3 + b"PING\r\n"
            got = b""
            async with bus.subscribe("b", Heard()):
                assert got.startswith(b"SUB b ")
                assert got.endswith(b"\r\nPING\r\n")


async def test_errors_of_the_body_come_out_plain(nats: NatsServer) -> None:
    with pytest.raises(KeyError, match="mine"):
        async with connected(at(nats)):
            raise KeyError("mine")
    with pytest.raises(ExceptionGroup, match="two") as caught:
        async with connected(at(nats)):
            raise ExceptionGroup("two", [KeyError("a"), ValueError("b")])
    assert len(caught.value.exceptions) == 2
    with pytest.raises(SystemExit):
        async with connected(at(nats)):
            raise SystemExit(3)
    with trio.move_on_after(0.2) as scope:
        async with connected(at(nats)):
            await trio.sleep_forever()
    assert scope.cancelled_caught
    with trio.CancelScope() as scope:
        async with connected(at(nats)):
            scope.cancel()
            await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught


async def test_a_bug_in_the_resolver_comes_out_plain_too() -> None:
    async def resolve() -> Sequence[str]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        async with open_nats(resolve):
            await trio.sleep_forever()


async def test_any_task_of_the_thread_may_use_it(nats: NatsServer) -> None:
    buses: list[NatsBus] = []
    heard = Heard()

    async def host(task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with connected(at(nats)) as bus:
            buses.append(bus)
            task_status.started()
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        await nursery.start(host)
        [bus] = buses
        async with bus.subscribe("a", heard):
            bus.publish("a", b"1")
            await bus.flush()
            await heard.count(1)
            with pytest.raises(NoReply):
                await bus.request("nobody", b"", timeout=20)
        nursery.cancel_scope.cancel()


async def test_two_in_one_process(nats: NatsServer) -> None:
    heard = Heard()
    async with connected(at(nats)) as one, connected(at(nats)) as two, one.subscribe("a", heard):
        two.publish("a", b"")
        one.publish("a", b"")
        await heard.count(2)


# --- handlers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "what", [ValueError("x"), OSError("x"), asyncio.CancelledError(), asyncio.InvalidStateError(), GeneratorExit()]
)
async def test_whatever_a_handler_raises_the_connection_comes_back(nats: NatsServer, what: BaseException) -> None:
    calls: list[bytes] = []
    called = Heard()

    def fails(message: Message) -> None:
        calls.append(message.data)
        called(message)
        raise what

    async with connected(at(nats)) as bus, bus.subscribe("a", fails):
        bus.publish("a", b"1")
        await called.count(1)
        await nats.restart()
        with trio.fail_after(20):
            await bus.wait_epoch_change(1)
        bus.publish("a", b"2")
        await called.count(2)
        assert bus.epoch == 2
    assert calls == [b"1", b"2"]


# --- what hostile clients send -------------------------------------------------------------------------------------


def hpub(header: bytes, payload: bytes = b"x", subject: bytes = b"a.b") -> bytes:
    return b"HPUB %s %d %d\r\n%s%s\r\n" % (subject, len(header), len(header) + len(payload), header, payload)


@pytest.mark.parametrize(
    "line",
    [
        b"PUB a.\xff\xfe 1\r\nx\r\n",
        b"PUB a.b _INBOX.\xff.1 1\r\nx\r\n",
        hpub(b"NATS/1.0 \xff\xff\xff x\r\n\r\n"),
        hpub(b"NATS/1.0 503 \xff\xff\xff\r\n\r\n"),
        hpub(b"NATS/1.0\r\n\r\n"),
        hpub(b"NATS/1.0"),
        hpub(b"NATS/1.0 "),
        hpub(b"\r\n\r\n"),
        hpub(b" "),
        hpub(b"NATS/1.0\r\n\xff\xfe: \xff\xff\r\n\r\n"),
        hpub(b"NATS/1.0\r\nNo colon here\r\n: \r\n\r\n"),
        hpub(b"NATS/1.0 100\r\n\r\n", b""),
        hpub(b"NATS/1.0 100 Idle\r\nx"),
    ],
)
async def test_a_message_that_is_not_text_is_one_messages_trouble(nats: NatsServer, line: bytes) -> None:
    other = Heard()
    async with connected(at(nats)) as bus, bus.subscribe("a.>", Heard()), bus.subscribe("b", other):
        stream = await trio.open_tcp_stream("127.0.0.1", nats.port)
        async with stream:
            hello = b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\n'
            await stream.send_all(hello + line + b"PUB b 2\r\nok\r\nPING\r\n")
            assert b"-ERR" not in await read_until(stream, b"PONG")
        await other.count(1)
        await bus.flush()
        assert (bus.connected, bus.epoch) == (True, 1)


# --- servers that are none -----------------------------------------------------------------------------------------


ODD: dict[str, tuple[bytes, str]] = {
    "closes at once": (b"", "empty response"),
    "HTTP": (b"HTTP/1.1 400 Bad Request\r\n\r\n", "empty response"),
    "no JSON": (b"INFO {nonsense\r\n", "json parse error"),
    "a list": (b"INFO []\r\n", "list"),
    "odd types": (b'INFO {"connect_urls":7,"max_payload":"many"}\r\n', ""),
    "no pong": (info() + b"+OK\r\n", "neither took nor refused"),
    "refuses": (info() + b"-ERR 'Something Else'\r\n", "Something Else"),
    "a line without end": (b"INFO " + b"x" * 100_000, ""),
    "not text": (b"INFO \xff\xff\r\n", "json parse error"),
}


@pytest.mark.parametrize("name", ODD)
async def test_a_server_that_is_none_is_left_for_one_that_is(
    nats: NatsServer, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    bytes_sent, reason = ODD[name]

    async def serve(stream: trio.SocketStream) -> None:
        await stream.send_all(bytes_sent)
        if bytes_sent:
            await read_until(stream, b"PING")

    async with odd_server(serve) as odd:
        rounds = iter([[odd], [odd], [nats.url]])

        async def resolve() -> Sequence[str]:
            return next(rounds)

        async with connected(resolve) as bus:
            assert bus.url == nats.url
    said = [record.getMessage() for record in caplog.records if record.getMessage().startswith("Not connected")]
    assert len(said) == 1  # once for each reason, not for each try
    assert odd in said[0]
    assert reason in said[0]


async def test_a_silent_server_is_given_up(nats: NatsServer) -> None:
    async def serve(stream: trio.SocketStream) -> None:
        await read_until(stream, b"never")

    async with odd_server(serve) as odd:
        rounds = iter([[odd], [nats.url]])

        async def resolve() -> Sequence[str]:
            return next(rounds)

        async with connected(resolve, Options(delays=quick, connect_timeout=0.3)) as bus:
            assert bus.url == nats.url


async def test_being_thrown_out_at_once_again_and_again_is_no_hot_loop() -> None:
    entered = 0
    asked: list[int] = []

    async def serve(stream: trio.SocketStream) -> None:
        nonlocal entered
        entered += 1
        await stream.send_all(info())
        await read_until(stream, b"PING")
        await stream.send_all(b"PONG\r\n")
        await read_until(stream, b"PING")
        await stream.send_all(b"PONG\r\n")
        await read_until(stream, b"PUB go")
        await stream.send_all(b"-ERR 'User Authentication Expired'\r\n")

    def delays() -> Iterator[float]:
        for number in range(1000):
            asked.append(number)
            yield 0.01

    async def resolve() -> Sequence[str]:
        return [url]

    async with odd_server(serve) as url, open_nats(resolve, Options(delays=delays)) as bus:
        with trio.fail_after(30):
            for epoch in range(5):
                await bus.wait_epoch_change(epoch)
                bus.publish("go", b"")
        await until_down(bus)
        assert "user authentication expired" in bus.last_error
    # A pause before each attempt but the first, and the table is not begun anew.
    assert asked[: entered - 1] == list(range(entered - 1))


async def test_the_delays_grow_to_five_seconds() -> None:
    delays = steady_delays()
    found = [next(delays) for _ in range(30)]
    nominal = [0.5, 1, 2, 4] + [5] * 26
    assert all(low / 2 <= seconds <= low * 1.5 for low, seconds in zip(nominal, found, strict=True))


async def test_servers_are_asked_for_anew_and_tried_in_any_order(nats: NatsServer) -> None:
    first: list[str] = []

    def serve_as(name: str) -> object:
        async def serve(stream: trio.SocketStream) -> None:
            first.append(name)

        return serve

    asked = 0
    async with odd_server(serve_as("a")) as a, odd_server(serve_as("b")) as b:  # type: ignore[arg-type]

        async def resolve() -> Sequence[str]:
            nonlocal asked
            asked += 1
            if asked == 1:
                raise OSError("no name service")
            return [a, b] if asked < 30 else [nats.url]

        async with connected(resolve, Options(delays=lambda: iter([0.001]))) as bus:
            assert bus.url == nats.url
    assert asked == 30
    pairs = {tuple(first[i : i + 2]) for i in range(0, len(first), 2)}
    assert pairs == {("a", "b"), ("b", "a")}


async def test_no_server_at_all_is_said(nats: NatsServer) -> None:
    rounds: list[list[str]] = [[]]

    async def resolve() -> Sequence[str]:
        return rounds[-1]

    async with open_nats(resolve, Options(delays=quick)) as bus:
        await until_said(bus, "no server is known")
        rounds.append([nats.url])
        with trio.fail_after(20):
            await bus.wait_connected()


async def test_fifty_failures_leave_nothing(nats: NatsServer) -> None:
    async def serve(stream: trio.SocketStream) -> None:
        await stream.send_all(info() + b"-ERR 'Authorization Violation'\r\n")

    async with odd_server(serve) as odd:
        rounds = iter([[odd]] * 50 + [[nats.url]])

        async def resolve() -> Sequence[str]:
            return next(rounds)

        async with connected(resolve, Options(delays=lambda: iter([0.001]))):
            pass


# --- who may enter, and what they may do ---------------------------------------------------------------------------


def _users(password: str, more: str = "") -> str:
    return f'authorization {{ users = [ {{ user: us, password: "{password}" {more} }} ] }}\n'


async def test_a_wrong_password_is_said_and_a_right_one_taken(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with nats_server(_users("old-secret")) as server:
        passwords = ["new-secret"]

        def credentials() -> Credentials:
            return Credentials(user="us", password=Secret(passwords[-1]))

        async with open_nats(at(server), Options(credentials=credentials, delays=quick)) as bus:
            await until_said(bus, "Authorization Violation")
            assert not bus.connected
            await reload(server, _users("new-secret"))
            with trio.fail_after(20):
                await bus.wait_connected()
            assert bus.last_error == ""
            # Changed under a running connection: thrown out, read anew, back.
            passwords.append("newest-secret")
            await reload(server, _users("newest-secret"))
            with trio.fail_after(20):
                await bus.wait_epoch_change(1)
                await bus.wait_connected()
            await bus.flush()
    assert "-secret" not in caplog.text


async def test_an_account_removed_and_given_back() -> None:
    def accounts(*names: str) -> str:
        inner = "\n".join(f'{name}: {{ users: [ {{ user: {name}, password: "p" }} ] }}' for name in names)
        return f"accounts {{ {inner} }}\n"

    heard = Heard()
    async with nats_server(accounts("us", "them")) as server:
        async with connected(at(server), user("us", "p")) as bus, bus.subscribe("a", heard):
            await reload(server, accounts("them"))
            await until_down(bus)
            await until_said(bus, "Authorization Violation")
            with pytest.raises(ConnectionLost):
                bus.publish("a", b"")
            await reload(server, accounts("us", "them"))
            with trio.fail_after(20):
                await bus.wait_connected()
            bus.publish("a", b"")
            await heard.count(1)


async def test_a_users_jwt_expires_and_the_next_one_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    operator, key = Operator(), NKey("user")
    signed: list[bytes] = []
    tokens = iter([operator.user(key, 2), operator.user(key)])
    heard = Heard()

    def sign(nonce: bytes) -> bytes:
        signed.append(nonce)
        return key.sign(nonce)

    def credentials() -> Credentials:
        return Credentials(jwt=Secret(next(tokens)), sign=sign)

    async with nats_server(operator.config) as server:
        async with connected(at(server), Options(credentials=credentials, delays=quick)) as bus:
            async with bus.subscribe("a", heard):
                with trio.fail_after(30):
                    assert await bus.wait_epoch_change(1) == 2
                bus.publish("a", b"")
                await heard.count(1)
    assert "user authentication expired" in caplog.text
    assert len(set(signed)) == 2  # each nonce signed afresh


async def test_a_credentials_file(tmp_path: Path) -> None:
    operator, key = Operator(), NKey("user")
    file = tmp_path / "us.creds"
    file.write_text(
        f"-----BEGIN NATS USER JWT-----\n{operator.user(key)}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{key.seed}\n------END USER NKEY SEED------\n"
    )
    async with nats_server(operator.config) as server:
        options = Options(credentials=lambda: Credentials(creds_file=file), delays=quick)
        async with connected(at(server), options) as bus:
            await bus.flush()
        file.unlink()
        async with open_nats(at(server), options) as bus:
            await until_said(bus, "us.creds")


async def test_a_permission_taken_away_and_given_back(caplog: pytest.LogCaptureFixture) -> None:
    denied = ', permissions: { subscribe: { deny: "a.>" }, publish: { deny: "a.>" } }'
    heard, other = Heard(), Heard()
    async with nats_server(_users("p")) as server, connected(at(server), user("us", "p")) as bus:
        async with bus.subscribe("A.b", other), bus.subscribe("a.b", heard):
            await reload(server, _users("p", denied))
            await until_said(bus, 'subscription to "a.b"')
            with pytest.raises(PermissionDenied, match=r'publish to "a\.b"'):
                await bus.request("a.b", b"", timeout=20)
            await reload(server, _users("p"))
            epoch = bus.epoch
            with trio.fail_after(30):
                await bus.wait_epoch_change(epoch)  # messages may have been missed
            bus.publish("a.b", b"back")
            bus.publish("A.b", b"back")
            await heard.count(1)
            await other.count(1)
            await bus.flush()
            assert (len(heard.messages), len(other.messages)) == (1, 1)
    assert "The server grants again" in caplog.text


async def test_a_wrong_inbox_prefix_is_told_as_such() -> None:
    allowed = ', permissions: { subscribe: "provisioning.reply.>", publish: ">" }'
    async with nats_server(_users("p", allowed)) as server:
        async with connected(at(server), user("us", "p")) as bus:
            assert 'permissions violation for subscription to "_inbox.' in bus.last_error
            with pytest.raises(PermissionDenied, match="no answer could arrive"):
                await bus.request("a", b"", timeout=60)
        async with connected(at(server), user("us", "p", inbox_prefix="provisioning.reply")) as bus:
            assert bus.last_error == ""

            def answer(message: Message) -> None:
                assert message.reply.startswith("provisioning.reply.")
                free.publish(message.reply, b"yes")

            async with connected(at(server), user("us", "p", inbox_prefix="provisioning.reply")) as free:
                async with free.subscribe("provisioning.reply.ask", answer):
                    assert (await bus.request("provisioning.reply.ask", b"", timeout=20)).data == b"yes"


async def test_a_limit_lowered_under_us() -> None:
    async with nats_server("max_payload: 60000\n") as server, connected(at(server)) as bus:
        assert bus.max_payload == 60000
        await reload(server, "max_payload: 1000\n")
        bus.publish("a", b"x" * 2000)  # we can't know it yet: the server throws us out
        with trio.fail_after(20):
            await bus.wait_epoch_change(1)
        assert bus.max_payload == 1000
        with pytest.raises(TooLarge):
            bus.publish("a", b"x" * 2000)
        await bus.flush()


# --- TLS -----------------------------------------------------------------------------------------------------------


async def test_tls_is_verified_and_what_is_wrong_is_said(tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path, "ours"), Authority(tmp_path, "theirs")
    authorities = [theirs]
    config = tls_config(*ours.certify("server", "127.0.0.1")) + "authorization { token: t }\n"
    asked = 0

    def credentials() -> Credentials:
        nonlocal asked
        asked += 1
        return Credentials(token=Secret("t"))

    def tls() -> ssl.SSLContext:
        return authorities[-1].context()

    async with nats_server(config) as server:
        options = Options(credentials=credentials, tls=tls, delays=quick)
        async with open_nats(at(server), options) as bus:
            await until_said(bus, "its certificate is not accepted: unable to get local issuer certificate")
            tried = asked
            with trio.fail_after(20):
                while asked < tried + 3:  # it goes on trying: connect() does not hang
                    await trio.sleep(0.02)
            authorities.append(ours)
            with trio.fail_after(20):
                await bus.wait_connected()
            await bus.flush()
            await server.restart()
            with trio.fail_after(20):
                await bus.wait_epoch_change(1)
            await bus.flush()


async def test_a_certificate_for_another_name_is_refused(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with nats_server(tls_config(*authority.certify("server", "another.example.net"))) as server:
        async with open_nats(at(server), Options(tls=authority.context, delays=quick)) as bus:
            await until_said(bus, "IP address mismatch")


async def test_a_client_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.certify("client")
    config = tls_config(*authority.certify("server", "127.0.0.1"), authority.ca, verify=True)

    def tls() -> ssl.SSLContext:
        context = authority.context()
        context.load_cert_chain(*pair)
        return context

    async with nats_server(config) as server:
        async with connected(at(server), Options(tls=tls, delays=quick)) as bus:
            await bus.flush()
        async with open_nats(at(server), Options(tls=authority.context, delays=quick)) as bus:
            with trio.fail_after(20):
                while not bus.last_error:
                    await trio.sleep(0.02)
            assert not bus.connected


async def test_no_credential_leaves_without_the_tls_that_was_demanded(tmp_path: Path) -> None:
    got: list[bytes] = []

    async def serve(stream: trio.SocketStream) -> None:
        await stream.send_all(info(auth_required=True))
        got.append(await read_until(stream, b"never"))

    async with odd_server(serve) as odd:

        async def resolve() -> Sequence[str]:
            return [odd]

        options = user("us", "a-secret", tls=Authority(tmp_path).context)
        async with open_nats(resolve, options) as bus:
            await until_said(bus, "the server does not offer TLS")
            with trio.fail_after(20):
                while len(got) < 2:
                    await trio.sleep(0.02)
    assert set(got) == {b""}


# --- the bytes of the CONNECT line ---------------------------------------------------------------------------------


async def _connect_line(credentials: Credentials, **more: object) -> dict[str, object]:
    lines: list[bytes] = []

    async def serve(stream: trio.SocketStream) -> None:
        await stream.send_all(info(nonce="MZ6jMVYnCxDbtQ8", auth_required=True, **more))
        lines.append(await read_until(stream, b"PING\r\n"))

    async with odd_server(serve) as odd:

        async def resolve() -> Sequence[str]:
            return [odd]

        options = Options(name="us.example.net", credentials=lambda: credentials, delays=quick)
        async with open_nats(resolve, options), trio.open_nursery():
            with trio.fail_after(20):
                while not lines:
                    await trio.sleep(0.01)
    line = lines[0]
    assert line.startswith(b"CONNECT {")
    assert line.endswith(b"}\r\nPING\r\n")
    return dict(json.loads(line.removeprefix(b"CONNECT ").removesuffix(b"\r\nPING\r\n")))


COMMON = {
    "echo": True,
    "headers": True,
    "lang": "python3",
    "name": "us.example.net",
    "no_responders": True,
    "pedantic": False,
    "protocol": 1,
    "tls_required": False,
    "verbose": False,
}


async def test_the_connect_line_has_user_password_token_jwt_and_signature_together() -> None:
    """The vector of wire-protocol 1.5: the seed is 32 bytes of 2; the text of the nonce is signed."""
    key = NKey("user").key.__class__(b"\x02" * 32)
    found = await _connect_line(
        Credentials(
            user="provisioner",
            password=Secret("s3cret"),
            token=Secret("a.b.c"),
            jwt=Secret("a.b.c"),
            sign=lambda nonce: key.sign(nonce).signature,
        )
    )
    del found["version"]
    assert found == COMMON | {
        "user": "provisioner",
        "pass": "s3cret",
        "auth_token": "a.b.c",
        "jwt": "a.b.c",
        "sig": "VmiP5jgJ53unoDG6GR23wOc_lj4oFooLr2sHMVuzFxG3jnsRqPQ95LQvg9t2l18a4ul8KcL9Z0VxmQsGnsCVBg",
    }


@pytest.mark.parametrize("nonce", ['{"protocol":"io.choria.protocol.v2.request"}', "a.b", "x" * 129, "a b", 7, ["a"]])
async def test_nothing_but_a_nonce_is_signed(nonce: object) -> None:
    """The key signs requests, tokens and trust chains too: all of these have braces or dots."""
    signed: list[bytes] = []

    async def serve(stream: trio.SocketStream) -> None:
        await stream.send_all(info(nonce=nonce))
        await read_until(stream, b"PING")

    def sign(message: bytes) -> bytes:
        signed.append(message)
        return b""

    async with odd_server(serve) as odd:

        async def resolve() -> Sequence[str]:
            return [odd]

        async with open_nats(resolve, Options(credentials=lambda: Credentials(sign=sign), delays=quick)) as bus:
            await until_said(bus, "what the server sent to be signed is no nonce")
    assert not signed


async def test_the_connect_line_has_no_key_for_what_is_not_given() -> None:
    found = await _connect_line(Credentials())
    del found["version"]
    assert found == COMMON
    found = await _connect_line(Credentials(user="provisioner", password=Secret("p"), token=Secret("t")))
    assert {key: found[key] for key in ("user", "pass", "auth_token")} == {
        "user": "provisioner",
        "pass": "p",
        "auth_token": "t",
    }
    assert not {"jwt", "sig", "nkey"} & set(found)


async def test_no_url_that_is_shown_holds_a_password() -> None:
    async with nats_server("authorization { user: us, password: hidden }\n") as server:

        async def resolve() -> Sequence[str]:
            return [f"nats://us:hidden@127.0.0.1:{server.port}"]

        async with connected(resolve) as bus:
            assert bus.url == server.url
            await server.kill()
            await until_down(bus)
            assert "hidden" not in bus.last_error
