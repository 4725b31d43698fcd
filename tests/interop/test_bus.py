"""Our bus on a real broker: the login each kind wants, real events, the election's bucket, a broker that dies."""

import json
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from provisioner.bus.interface import Message
from provisioner.bus.login import Credentials
from provisioner.bus.nats import NatsBus, Options, open_nats
from provisioner.choria.events import decode_event
from provisioner.secret import Secret
from tests.interop.choria import LEADER_TTL, PASSWORD, Broker
from tests.interop.conftest import StartServer
from tests.interop.process import Process, stop_all, until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1200)]

EVENTS = "choria.lifecycle.event.startup.provision_mode_server"
KEY = "choria.streams.$KV.CHORIA_LEADER_ELECTION.provisioner"


@asynccontextmanager
async def provisioner_bus(broker: Broker, password: str = PASSWORD) -> AsyncIterator[NatsBus]:
    """A provisioner's connection: a certificate and the password (1), or token, signed nonce and password (2)."""
    settings = {key: str(value) for key, value in broker.client_settings("bus.example.net").items()}

    def tls() -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=broker.authority.ca)
        if broker.version == 1:
            context.load_cert_chain(settings["plugin.security.file.certificate"], settings["plugin.security.file.key"])
        return context

    def credentials() -> Credentials:
        if broker.version == 1:
            return Credentials(user="provisioner", password=Secret(password))
        token = Path(settings["plugin.security.choria.token_file"]).read_text()
        return Credentials(user="provisioner", password=Secret(password), token=Secret(token))

    async def resolve() -> list[str]:
        return [broker.url]

    options = Options(credentials=credentials, tls=tls, inbox_prefix="provisioning.reply")
    async with open_nats(resolve, options) as bus:
        yield bus


async def test_a_provisioner_logs_in_and_hears_a_real_server_start(broker: Broker, start_server: StartServer) -> None:
    heard: list[Message] = []
    async with provisioner_bus(broker) as bus:
        with trio.fail_after(60):
            await bus.wait_connected()
            async with bus.subscribe(EVENTS, heard.append):
                start_server("event.example.net")
                await until(lambda: heard, "the startup event")
    event = decode_event(heard[0].data)
    assert (event.type, event.component, event.identity) == ("startup", "provision_mode_server", "event.example.net")
    assert json.loads(heard[0].data)["source"] == "io.choria.lifecycle"


async def test_a_wrong_password_is_refused_and_said(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with provisioner_bus(broker, "a wrong password") as bus:
        await until(lambda: "Authorization Violation" in bus.last_error, "the broker's refusal")
        assert not bus.connected
    assert "a wrong password" not in caplog.text


async def test_the_election_bucket_works_through_the_bus(broker: Broker) -> None:
    """The requests of wire-protocol 10.2, and the delete marker that a polite hand-over writes."""
    await trio.to_thread.run_sync(broker.wait_for_bucket)
    async with provisioner_bus(broker) as bus:
        with trio.fail_after(60):
            await bus.wait_connected()
            ask = partial(bus.request, timeout=10.0)
            info = json.loads((await ask("choria.streams.STREAM.INFO.KV_CHORIA_LEADER_ELECTION", b"")).data)
            assert info["config"]["max_age"] == LEADER_TTL * 1_000_000_000
            assert info["config"]["max_msgs_per_subject"] == 1

            async def write(expected: int, **headers: str) -> dict[str, object]:
                headers["Nats-Expected-Last-Subject-Sequence"] = str(expected)
                return dict(json.loads((await ask(KEY, b"bus.example.net", headers=headers)).data))

            created = await write(0)
            assert created["stream"] == "KV_CHORIA_LEADER_ELECTION"
            refused = await write(0)
            assert refused["error"]["err_code"] == 10071  # type: ignore[index]
            renewed = await write(int(str(created["seq"])))
            given_up = await write(int(str(renewed["seq"])), **{"KV-Operation": "DEL"})
            taken_up = await write(int(str(given_up["seq"])))
            assert "error" not in taken_up
            await write(int(str(taken_up["seq"])), **{"KV-Operation": "DEL"})


async def test_the_bus_comes_back_after_its_broker(
    version: int, harness: Path, tmp_path: Path, processes: list[Process]
) -> None:
    """The broker is killed and comes back on the same port: connected again, subscriptions made again."""
    broker = Broker(version, tmp_path, harness)
    processes.append(broker.process)
    heard: list[Message] = []
    try:
        await trio.to_thread.run_sync(broker.start)
        async with provisioner_bus(broker) as bus:
            with trio.fail_after(120):
                await bus.wait_connected()
                async with bus.subscribe(EVENTS, heard.append):
                    epoch = bus.epoch
                    broker.process.kill()
                    await until(lambda: not bus.connected, "the loss of the connection")
                    await trio.to_thread.run_sync(broker.restart)
                    await bus.wait_connected()
                    assert bus.epoch > epoch
                    bus.publish(EVENTS, b"after the restart")
                    await until(lambda: heard, "a message on the old subscription")
    finally:
        stop_all([broker.process])
    assert [message.data for message in heard] == [b"after the restart"]
