"""The embedded nats-server: ready when it says so, same port after a restart, gone afterwards."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from provisioner.simulator.embedded import NatsServer, NoNatsServer, find_nats_server, nats_server


async def _info(server: NatsServer) -> bytes:
    stream = await trio.open_tcp_stream("127.0.0.1", server.port)
    async with stream:
        return bytes(await stream.receive_some(4096))


async def test_is_ready_on_loopback_and_is_killed_at_the_end() -> None:
    async with nats_server() as server:
        assert server.url == f"nats://127.0.0.1:{server.port}"
        assert (await _info(server)).startswith(b"INFO {")
        assert "Server is ready" in server.log_text()
        process = server.process
        directory = server.directory
    assert process is not None
    assert process.returncode == -9
    assert not directory.exists()
    with pytest.raises(OSError, match=r"all attempts|refused"):
        await _info(server)


async def test_is_killed_when_the_body_is_cancelled_or_raises() -> None:
    with trio.CancelScope() as scope:
        async with nats_server() as server:
            scope.cancel()
            await trio.sleep_forever()
    assert server.process is not None
    assert server.process.returncode == -9
    with pytest.raises(ZeroDivisionError):
        async with nats_server() as server:
            raise ZeroDivisionError
    assert server.process is not None
    assert server.process.returncode == -9


async def test_keeps_port_and_data_over_stop_and_restart(tmp_path: Path) -> None:
    async with nats_server("max_payload: 4096", jetstream=True, directory=tmp_path) as server:
        info = await _info(server)
        assert b'"max_payload":4096' in info
        assert b'"jetstream":true' in info
        port = server.port
        await server.stop()
        assert server.process is not None
        assert server.process.returncode is not None
        await server.stop()  # twice does no harm
        await server.restart()
        assert server.port == port
        assert (await _info(server)).startswith(b"INFO {")
    assert (tmp_path / "jetstream").is_dir()
    assert (tmp_path / "nats.conf").stat().st_mode & 0o777 == 0o600


async def test_a_program_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NATS_SERVER", "/nonexistent/nats-server")
    with pytest.raises(NoNatsServer, match="/nonexistent/nats-server"):
        async with nats_server():
            pass


async def test_runs_without_setpriv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NATS_SERVER", find_nats_server())
    monkeypatch.setenv("PATH", "/nonexistent")
    async with nats_server() as server:
        assert (await _info(server)).startswith(b"INFO {")
    monkeypatch.setenv("NATS_SERVER", "/nonexistent/nats-server")
    with pytest.raises(NoNatsServer, match="/nonexistent/nats-server can't be started: No such file or directory"):
        async with nats_server():
            pass


async def test_says_what_was_wrong_with_the_configuration() -> None:
    with pytest.raises(NoNatsServer, match="did not start"):
        async with nats_server("no_such_option: true"):
            pass


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs util-linux")
async def test_ends_when_this_process_is_killed(tmp_path: Path) -> None:
    program = (
        "import trio, sys\n"
        "from provisioner.simulator.embedded import nats_server\n"
        "async def main():\n"
        "    async with nats_server() as server:\n"
        "        print(server.process.pid, flush=True)\n"
        "        await trio.sleep_forever()\n"
        "trio.run(main)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        pid = int(await trio.to_thread.run_sync(process.stdout.readline))
        os.kill(pid, 0)
        process.kill()
    with trio.fail_after(30):
        while _runs(pid):
            await trio.sleep(0.02)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
