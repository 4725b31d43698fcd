"""Which brokers are asked for, in which order; against a name service of our own."""

import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import dns.message
import dns.rcode
import dns.rrset
import pytest
import trio
from dns.asyncresolver import Resolver

from provisioner.broker.servers import MAX_SERVERS, facter_domain, lookup_srv, resolver
from provisioner.choria.settings import ChoriaSettings

ANSWERS = {
    "_mcollective-server._tcp.example.net": ["b1.example.net:4222", "b2.example.net:4222"],
    "_x-puppet-mcollective._tcp.example.net": ["old.example.net:4222"],
    "_x-puppet-mcollective._tcp.old.example.net": ["old.example.net:4222"],
    "_mcollective-server._tcp.empty.example.net": [],
    "_x-puppet-mcollective._tcp.empty.example.net": ["never.asked:1"],
    "_mcollective-federation_server._tcp.example.net": ["fed.example.net:4222"],
}


def settings(**more: object) -> ChoriaSettings:
    return ChoriaSettings(**more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "domain", "wanted", "asked"),
    [
        ({"middleware_hosts": ("nats://a:1", "nats://b:2")}, "example.net", ["nats://a:1", "nats://b:2"], []),
        (
            {},
            "example.net",
            ["nats://b1.example.net:4222", "nats://b2.example.net:4222"],
            ["_mcollective-server._tcp.example.net"],
        ),
        (
            {"srv_domain": "old.example.net"},
            "example.net",
            ["nats://old.example.net:4222"],
            ["_mcollective-server._tcp.old.example.net", "_x-puppet-mcollective._tcp.old.example.net"],
        ),
        (
            {"srv_domain": "empty.example.net"},
            "",
            ["nats://puppet:4222"],
            ["_mcollective-server._tcp.empty.example.net"],
        ),
        (
            {},
            "nowhere",
            ["nats://puppet:4222"],
            ["_mcollective-server._tcp.nowhere", "_x-puppet-mcollective._tcp.nowhere"],
        ),
        ({}, "", ["nats://puppet:4222"], []),
        ({"use_srv": False}, "example.net", ["nats://puppet:4222"], []),
        (
            {"federation_collectives": ("fed",), "middleware_hosts": ("nats://a:1",)},
            "example.net",
            ["nats://fed.example.net:4222"],
            ["_mcollective-federation_server._tcp.example.net"],
        ),
        (
            {"federation_collectives": ("fed",), "federation_middleware_hosts": ("nats://f:1",)},
            "example.net",
            ["nats://f:1"],
            [],
        ),
    ],
)
async def test_where_servers_come_from(
    given: dict[str, object], domain: str, wanted: list[str], asked: list[str]
) -> None:
    seen: list[str] = []

    async def lookup(name: str) -> Sequence[str]:
        seen.append(name)
        try:
            return ANSWERS[name]
        except KeyError:
            raise OSError("no such name") from None

    async def find_domain() -> str:
        return domain

    resolve = resolver(settings(**given), lookup=lookup, domain=find_domain)
    assert list(await resolve()) == wanted
    assert seen == asked
    await resolve()
    assert seen == asked * 2  # nothing is remembered


@asynccontextmanager
async def name_service(answer: Callable[[dns.message.Message], bytes | None]) -> AsyncIterator[Resolver]:
    """A name server on loopback; yields a resolver that asks it."""
    with trio.socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        await server.bind(("127.0.0.1", 0))

        async def serve() -> None:
            while True:
                data, peer = await server.recvfrom(4096)
                if (reply := answer(dns.message.from_wire(data))) is not None:
                    await server.sendto(reply, peer)

        asks = Resolver(configure=False)
        asks.nameservers = ["127.0.0.1"]
        asks.port = server.getsockname()[1]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            yield asks
            nursery.cancel_scope.cancel()


async def test_srv_records_come_by_priority() -> None:
    def answer(query: dns.message.Message) -> bytes:
        assert str(query.question[0].name) == "_mcollective-server._tcp.example.net."
        reply = dns.message.make_response(query)
        records = ["20 1 4223 second.example.net.", "10 1 4222 first.example.net.", "30 1 0 no.port.", "40 1 4222 ."]
        reply.answer.append(dns.rrset.from_text(query.question[0].name, 60, "IN", "SRV", *records))
        return reply.to_wire()

    async with name_service(answer) as asks:
        found = await lookup_srv("_mcollective-server._tcp.example.net", asks)
    assert found == ["first.example.net:4222", "second.example.net:4223"]


async def test_an_answer_is_bounded() -> None:
    def answer(query: dns.message.Message) -> bytes:
        reply = dns.message.make_response(query)
        records = [f"1 1 4222 h{number}." for number in range(MAX_SERVERS + 50)]
        reply.answer.append(dns.rrset.from_text(query.question[0].name, 60, "IN", "SRV", *records))
        return reply.to_wire(max_size=65535)

    async with name_service(answer) as asks:
        assert len(await lookup_srv("_x._tcp.example.net", asks)) == MAX_SERVERS


async def test_a_name_that_is_not_there_and_a_silent_name_service() -> None:
    def no_such_name(query: dns.message.Message) -> bytes:
        reply = dns.message.make_response(query)
        reply.set_rcode(dns.rcode.NXDOMAIN)
        return reply.to_wire()

    async with name_service(no_such_name) as asks:
        with pytest.raises(OSError, match="does not exist"):
            await lookup_srv("_mcollective-server._tcp.example.net", asks)
    async with name_service(lambda _: None) as asks:
        asks.lifetime = 0.3
        with trio.fail_after(20), pytest.raises(OSError, match="lifetime expired"):
            await lookup_srv("_mcollective-server._tcp.example.net", asks)


async def test_names_that_are_none() -> None:
    async with name_service(lambda _: None) as asks:
        for name in ("a..b", "x" * 300, "a" * 70 + ".b"):
            with pytest.raises(OSError, match=r".+"):
                await lookup_srv(name, asks)


async def test_facter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert await facter_domain() == ""
    facter = tmp_path / "facter"
    facter.write_text('#!/bin/sh\n[ "$1" = networking.domain ] && echo example.net; echo noise >&2\n')
    facter.chmod(0o755)
    assert await facter_domain() == "example.net"
