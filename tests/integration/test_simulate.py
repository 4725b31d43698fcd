"""The command that simulates a fleet, on a real NATS server."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import trio

from provisioner.bus.interface import Message
from provisioner.bus.nats import open_nats
from provisioner.choria import rpc, subjects
from provisioner.choria.filter import Filter
from provisioner.choria.wire import NANOSECOND, Request
from provisioner.cli.choria import PROGRAM
from provisioner.simulator.embedded import NatsServer
from provisioner.simulator.server import server_wire
from provisioner.trust.keys import load_verification_key
from provisioner.trust.tokens import verify_provisioning_token
from tests.asking import encode_request

SIMULATE = [sys.executable, "-m", "provisioner.cli.choria", "simulate"]


@pytest.mark.parametrize("version", [1, 2])
async def test_a_fleet_on_a_real_server(
    version: int, nats: NatsServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keyfile = tmp_path / "key"
    wire = server_wire(version)
    found: dict[str, str] = {}
    tokens: list[str] = []
    arguments = f"simulate --servers 3 --protocol {version} --servers-url {nats.url} --token t0ken".split()
    arguments += ["--fault", "dying:shutdown=3"]

    async def resolve() -> list[str]:
        return [nats.url]

    def ask(identity: str, action: str) -> None:
        id_ = wire.new_request_id()
        body = rpc.encode_rpc_request("choria_provision", action, {"token": "t0ken"})
        now = int(time.time()) * NANOSECOND
        reply_to = subjects.reply("me", id_)
        request = Request(id_, "choria_provision", "provisioning", "me", "me", 60, now, Filter(), body, reply_to)
        bus.publish(subjects.node(identity), encode_request(wire, request, url=nats.url))

    def on_event(message: Message) -> None:
        identity = message.data.partition(b'"identity":"')[2].partition(b'"')[0].decode()
        found[identity] = message.subject
        ask(identity, "jwt")

    def on_reply(message: Message) -> None:
        reply = wire.decode_reply(message.data)
        body = rpc.decode_rpc_reply(reply.payload)
        rpc.raise_for_status(body)
        if body.action == "jwt":
            tokens.append(body.data["jwt"])
            ask(reply.sender, "shutdown")

    with trio.fail_after(50):
        async with (
            open_nats(resolve) as bus,
            bus.subscribe(f"{subjects.reply_prefix('me')}.*", on_reply),
            bus.subscribe(subjects.event("startup", "provision_mode_server"), on_event),
        ):
            flags = [*arguments, "--verification-key", str(keyfile)]
            assert await trio.to_thread.run_sync(PROGRAM.main, flags) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"Connecting to {nats.url}",
        "3 simulated servers wait to be provisioned",
        "3 servers: 0 configured (at most 0 times), 0 restarted",
    ]
    assert sorted(found) == ["n0001.example.net", "n0002.example.net", "n0003.example.net"]
    assert len(tokens) == 3
    for token in tokens:
        assert verify_provisioning_token(token, load_verification_key(str(keyfile)), now=time.time())["cht"] == "t0ken"


async def test_an_interrupt_ends_it_with_its_closing_line(nats: NatsServer) -> None:
    command = [*SIMULATE, "--servers", "2", "--no-events", "--servers-url", nats.url]
    with trio.fail_after(50):
        process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert process.stdout is not None
        try:
            lines = bytearray()
            while b"wait to be provisioned\n" not in lines:
                lines += await process.stdout.receive_some()
            process.send_signal(signal.SIGINT)
            async for more in process.stdout:
                lines += more
            assert await process.wait() == 0
        finally:
            process.kill()
    assert lines.decode().splitlines()[-1] == "2 servers: 0 configured (at most 0 times), 0 restarted"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--fault", "nonsense"], "no fault is called 'nonsense'; there are silent, slow"),
        (["--fault", "slow=many"], "a number of servers is wanted after =, not 'many'"),
        (["--servers", "0"], "1 to 1000000 servers can be simulated"),
        (["--protocol", "3"], "invalid choice"),
    ],
)
def test_bad_flags(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert PROGRAM.main(["simulate", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_key_file_that_cant_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert PROGRAM.main(["simulate", "--protocol", "2", "--verification-key", str(tmp_path)]) == 2
    assert f"{tmp_path}: --verification-key: can't be written: Is a directory" in capsys.readouterr().err
