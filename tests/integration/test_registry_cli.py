"""``mesh-provisioner`` as a program: what it prints, where, its exit codes, its page and its end."""

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from provisioner.bus.interface import Message
from provisioner.bus.login import Credentials
from provisioner.bus.nats import Options
from provisioner.cli.mesh import PROGRAM as PROVISIONER
from provisioner.registry.answer import Request, answer
from provisioner.registry.client import VERB, NodeClient
from provisioner.registry.keys import REGISTRY
from provisioner.registry.rows import Rows
from provisioner.registry.table import TABLE
from provisioner.simulator.embedded import nats_server
from tests.integration.buses import at, connected
from tests.integration.mesh import (
    ACCOUNTS,
    GENEROUS,
    PASSWORDS,
    PROGRAM,
    connection,
    get,
    mesh,
    ready,
    served,
    serving,
)
from tests.integration.nats_faults import Authority, NKey, Operator, tls_config


async def run(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    with trio.fail_after(60):
        return await trio.run_process([*PROGRAM, *arguments], capture_stdout=True, capture_stderr=True, check=False)


# --- ask ---


async def test_asking(tmp_path: Path) -> None:
    async with served(tmp_path) as (made, _):
        who = connection(made, tmp_path, "n1-client")
        node = NodeClient(made.client, "n1")
        await node.put_item("shell:zsh:normal", "zshmod", {"order": 10})
        await node.put_item("hosts", "dns\n\x1b[31m", "a\tb")
        await made.store("collect", "n1.app", b"1")

        got = await run("ask", *who, "--json")
        assert (got.returncode, got.stderr) == (0, b"")
        answer = json.loads(got.stdout)
        assert [item["kind"] for item in answer["items"]] == sorted(kind.kind for kind in TABLE)

        got = await run("ask", "collect", "--collection", "shell:zsh:normal", "--node", "n1", "--module", "zshmod",
                        "--json", *who)  # fmt: skip
        assert got.returncode == 0
        assert json.loads(got.stdout) == {
            "what": "collect",
            "sequence": 3,
            "items": [{"node": "n1", "collection": "shell:zsh:normal", "contributor": "zshmod",
                       "key": "n1.shell=3Azsh=3Anormal.zshmod", "revision": 1, "value": {"order": 10}}],
            "bad_keys": [{"key": "n1.app", "revision": 3, "why": "2 parts, a key of this bucket has 3"}],
            "bad_keys_total": 1,
            "bad_values": [],
            "truncated": False,
        }  # fmt: skip

        got = await run("ask", "collect", *who)
        assert got.returncode == 0
        assert got.stdout.decode().splitlines() == [
            'n1\thosts\tdns\\n\\x1b[31m\t2\t"a\\tb"',
            'n1\tshell:zsh:normal\tzshmod\t1\t{"order":10}',
        ]
        assert got.stderr.decode() == (
            "mesh-provisioner: bad key: 'n1.app': 2 parts, a key of this bucket has 3\n"
        )  # fmt: skip

        got = await run("ask", "needs", *who, "--json")
        assert json.loads(got.stdout)["items"] == []


async def test_a_table_on_a_terminal(tmp_path: Path) -> None:
    async with served(tmp_path) as (made, _):
        await NodeClient(made.client, "n1").put_applied("app", {"text": "\x1b]0;title\x07"})
        await made.store("applied", "n1", b"1")
        leader, follower = pty.openpty()
        try:
            with trio.fail_after(60):
                environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
                await trio.run_process(
                    [*PROGRAM, "ask", "applied", *connection(made, tmp_path, "n1-client")],
                    stdin=follower, stdout=follower, stderr=follower, env=environment,
                )  # fmt: skip
            text = re.sub(r"\x1b\[[0-9;]*m", "", os.read(leader, 65536).decode())
        finally:
            os.close(leader)
            os.close(follower)
        for expected in ("┃ node", "│ n1", "app", "out of shape", "1 part, a key of this bucket has 2", "1 items"):
            assert expected in text
        assert "\x1b]0;" not in text


async def test_all_pages_are_followed(tmp_path: Path) -> None:
    async with served(tmp_path) as (made, _):
        for number in range(150):
            await made.bucket("collect").put(f"n{number}.c.m", b'"' + b"v" * 10_000 + b'"')
        got = await run("ask", "collect", "--json", *connection(made, tmp_path, "n1-client"))
        assert got.returncode == 0
        answer = json.loads(got.stdout)
        assert len(answer["items"]) == 150
        assert answer["truncated"] is False
        assert "next" not in answer


async def test_exit_codes_of_errors_that_are_answered(tmp_path: Path) -> None:
    async with served(tmp_path) as (made, service):
        who = connection(made, tmp_path, "n1-client")
        await made.delete_bucket("needs")
        got = await run("ask", "needs", "--json", *who)
        assert got.returncode == 3
        assert json.loads(got.stdout)["error"]["code"] == "unavailable"
        del service.mirrors["applied"]
        got = await run("ask", "applied", "--json", *who)
        assert got.returncode == 1
        assert json.loads(got.stdout)["error"]["code"] == "internal"


@pytest.mark.slow  # waits for seconds that are the program's own
async def test_exit_codes_when_there_is_nobody_to_ask(tmp_path: Path) -> None:
    found: dict[str, subprocess.CompletedProcess[bytes]] = {}

    async def attempt(name: str, arguments: list[str]) -> None:
        found[name] = await run("ask", "--json", *arguments)

    async with mesh(tmp_path, buckets=False) as made:
        who = connection(made, tmp_path, "n1-client")
        wrong = tmp_path / "wrong"
        wrong.write_text("wrong")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(attempt, "no service", who)
            nursery.start_soon(attempt, "password", [*who[:4], "--password-file", str(wrong)])
            nursery.start_soon(attempt, "no server", ["--servers", "127.0.0.1:1"])
            nursery.start_soon(attempt, "not granted", connection(made, tmp_path, "mesh-provisioner"))
    assert {name: got.returncode for name, got in found.items()} == {
        "no service": 3, "password": 3, "no server": 3, "not granted": 2
    }  # fmt: skip
    assert {got.stdout for got in found.values()} == {b""}
    assert "nobody listens on mesh-provisioner.provisioning" in found["no service"].stderr.decode()
    assert "authorization violation" in found["password"].stderr.decode().lower()
    assert "not connected within 5 s" in found["no server"].stderr.decode()
    assert "permissions violation" in found["not granted"].stderr.decode()


async def test_the_demo_shows_what_it_says() -> None:
    with trio.fail_after(60):
        got = await trio.run_process(
            [sys.executable, str(ACCOUNTS.with_name("mesh_demo.py"))], capture_stdout=True, check=False
        )
    text = got.stdout.decode()
    assert got.returncode == 0, text
    assert "All as it should be." in text
    assert "NOT" not in text
    assert text.count("permissions violation for publish") == 4


@pytest.mark.slow  # waits for seconds that are the program's own
async def test_tls_and_a_credentials_file(tmp_path: Path) -> None:
    ours, strange, operator, key = Authority(tmp_path), Authority(tmp_path, "strange"), Operator(), NKey("user")
    creds = tmp_path / "user.creds"
    creds.write_text(
        f"-----BEGIN NATS USER JWT-----\n{operator.user(key)}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{key.seed}\n------END USER NKEY SEED------\n"
    )
    config = tls_config(*ours.certify("server", "127.0.0.1")) + operator.config
    async with nats_server(config) as server:
        options = Options(credentials=lambda: Credentials(creds_file=creds), tls=ours.context)
        async with connected(at(server), options) as bus:
            text = answer(Request(), Rows(REGISTRY), 7, 1000)

            def reply(message: Message) -> None:
                bus.publish(message.reply, text)

            async with bus.subscribe(VERB, reply):
                url = f"tls://127.0.0.1:{server.port}"
                got = await run("ask", "--servers", url, "--tls-ca", str(ours.ca), "--creds", str(creds), "--json")
                assert (got.returncode, got.stderr) == (0, b"")
                assert json.loads(got.stdout)["sequence"] == 7
                got = await run("ask", "--servers", url, "--tls-ca", str(strange.ca), "--creds", str(creds), "--json")
                assert (got.returncode, got.stdout) == (3, b"")
                assert "its certificate is not accepted: unable to get local issuer certificate" in got.stderr.decode()
                assert got.stderr.count(b"\n") == 1
                assert key.seed not in got.stderr.decode()


# --- serve ---


async def test_the_daemon_and_its_page(tmp_path: Path) -> None:
    async with mesh(tmp_path, buckets=False) as made:
        async with serving(tmp_path, *connection(made, tmp_path, "mesh-provisioner")) as (process, port):
            # Alive but not ready: it says what is missing, and goes on when it is there.
            assert await get(port, "/healthz") == (200, "ok\n")
            code, text = await get(port, "/readyz")
            assert code == 503
            assert "mesh-provisioner_needs" in text
            await made.make_buckets()
            await ready(port)
            assert len((await made.ask()).items) == 13
            metrics = (await get(port, "/metrics"))[1]
            for line in (
                'mesh_provisioner_requests{what="registry",outcome="answered"} 1.0',
                'mesh_provisioner_changes{change="create"} 13.0',
                'mesh_provisioner_bucket_available{bucket="mesh-provisioner_needs"} 1.0',
                'mesh_provisioner_bucket_keys{bucket="mesh-provisioner_registry"} 13.0',
                "mesh_provisioner_connected 1.0",
            ):
                assert line in metrics.splitlines()
            assert "process_resident_memory_bytes" in metrics
            status = json.loads((await get(port, "/status"))[1])
            assert status["problems"] == {}
            assert status["keys"]["mesh-provisioner_registry"] == 13
            process.send_signal(signal.SIGTERM)
            with trio.fail_after(GENEROUS):
                assert await process.wait() == 0
    output = (tmp_path / "output").read_text()
    assert "mesh-provisioner stopped" in output
    assert "Traceback" not in output
    assert PASSWORDS["mesh-provisioner"] not in output


async def test_the_service_manager_is_told(tmp_path: Path) -> None:
    with trio.socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        address = str(tmp_path / "notify")
        await told.bind(address)
        environ = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "400000"}
        async with serving(tmp_path, "--servers", "127.0.0.1:1", environ=environ) as (process, _):
            with trio.fail_after(GENEROUS):
                heard: set[bytes] = set()
                while not {b"READY=1", b"WATCHDOG=1"} <= heard:  # without a server, too
                    heard.update((await told.recv(4096)).split(b"\n"))
                process.send_signal(signal.SIGTERM)
                while b"STOPPING=1" not in heard:
                    heard.update((await told.recv(4096)).split(b"\n"))
                assert await process.wait() == 0


async def test_first_set_up_makes_the_buckets(tmp_path: Path) -> None:
    async with mesh(tmp_path, buckets=False) as made:
        arguments = [*connection(made, tmp_path, "controller"), "--create-buckets"]
        async with serving(tmp_path, *arguments) as (process, port):
            await ready(port)
            assert len((await made.ask()).items) == 13
            process.send_signal(signal.SIGINT)
            with trio.fail_after(GENEROUS):
                assert await process.wait() == 0


async def test_started_before_the_server(tmp_path: Path) -> None:
    async with mesh(tmp_path) as made:
        await made.server.kill()
        log = tmp_path / "log.json"
        arguments = [*connection(made, tmp_path, "mesh-provisioner"), "--logfile", str(log)]
        async with serving(tmp_path, *arguments) as (process, port):
            code, text = await get(port, "/readyz")
            assert code == 503
            assert "connection" in text
            await made.server.start()
            with trio.fail_after(GENEROUS):
                await made.client.wait_connected()
            await ready(port)
            assert len((await made.ask()).items) == 13
            process.send_signal(signal.SIGHUP)  # a log rotation: it goes on
            assert len((await made.ask()).items) == 13
            process.send_signal(signal.SIGTERM)
            with trio.fail_after(GENEROUS):
                assert await process.wait() == 0
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        assert {line["component"] for line in lines} == {"mesh-provisioner"}


SERVER = ["--servers", "nats://127.0.0.1:1"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["serve"], "--servers"),
        (["serve", *SERVER, "--monitor-port", "70000"], "--monitor-port"),
        (["serve", *SERVER, "--monitor-port", "x"], "--monitor-port"),
        (["serve", *SERVER, "--creds", "/nowhere"], "/nowhere: --creds: can't be read: No such file"),
        (["nonsense"], "no such command: nonsense; there are serve, ask"),
        ([], "commands:"),
        (["ask", "secrets", *SERVER], "invalid choice: 'secrets'"),
        (["ask", "needs"], "--servers"),
        (["ask", "needs", "--collection", "x", *SERVER], "bad_request: collection does not narrow needs"),
        (["ask", "--node", "n1", *SERVER], "bad_request: node does not narrow registry"),
        (["ask", "needs", "--node", "", *SERVER], "bad_request: node: a name can't be empty"),
        (["ask", *SERVER, "--user", "u"], "--user: goes together with --password-file"),
        (["ask", *SERVER, "--password-file", "f"], "--user: goes together with --password-file"),
        (["ask", *SERVER, "--user", "u", "--password-file", "f", "--creds", "x"], "--creds: excludes --user"),
        (["ask", *SERVER, "--user", "u", "--password-file", "/nowhere"], "/nowhere: --password-file: can't be read"),
        (["ask", *SERVER, "--user", "u", "--password-file", "{binary}"], "--password-file: is not text"),
        (["ask", *SERVER, "--user", "u", "--password-file", "{empty}"], "must hold one line, the password"),
        (["ask", *SERVER, "--user", "u", "--password-file", "{two}"], "must hold one line, the password"),
        (["ask", *SERVER, "--tls-ca", "{two}"], "holds no certificates in PEM"),
        (["ask", "--servers", "http://x"], "is not nats://HOST:PORT"),
        (["ask", "--servers", "nats://x:99999"], "is not nats://HOST:PORT"),
        (["ask", "--servers", "nats://x/path"], "is not nats://HOST:PORT"),
        (["ask", "--servers", ","], "no server is named"),
        (["ask", "--servers", "nats://u:s3cret@x"], "may not hold a password"),
    ],
)
def test_flags_that_are_refused(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, content in (("binary", b"\xff"), ("empty", b"\n"), ("two", b"s3cret\ns3cret\n")):
        (tmp_path / name).write_bytes(content)
    code = PROVISIONER.main([re.sub(r"\{(\w+)\}", rf"{tmp_path}/\1", argument) for argument in arguments])
    got = capsys.readouterr()
    assert (code, got.out) == (2, "")
    assert said in got.err
    assert "s3cret" not in got.err
    assert "Traceback" not in got.err


async def test_a_port_that_is_taken(tmp_path: Path) -> None:
    listeners = await trio.open_tcp_listeners(0, host="0.0.0.0")
    port = listeners[0].socket.getsockname()[1]
    try:
        got = await run("serve", "--servers", "127.0.0.1:1", "--monitor-port", str(port))
    finally:
        await listeners[0].aclose()
    assert got.returncode == 2
    assert re.search("--monitor-port: can't listen on this port: Address already in use", got.stderr.decode())
