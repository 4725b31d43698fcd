"""The daemon as a process, as a service manager sees it. There is no broker here: none is needed to be supervised."""

import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Self

import pytest
import trio

from tests.integration.daemon import free_port, running_daemon, write_files

TOKEN = "s3cretTokenValue"
PASSWORD = "hunter2hunter2"


class Manager:
    """Listens as systemd does."""

    def __init__(self, path: Path) -> None:
        self.address = str(path)
        self._socket = trio.socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    async def __aenter__(self) -> Self:
        await self._socket.bind(self.address)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._socket.close()

    async def until(self, start: str) -> str:
        """Waits for a line that starts so; returns it."""
        with trio.fail_after(30):
            while True:
                for line in (await self._socket.recv(4096)).decode().splitlines():
                    if line.startswith(start):
                        return line


async def told(path: Path, text: str) -> None:
    """Waits until a log says so."""
    with trio.fail_after(30):
        while not path.exists() or text not in path.read_text():
            await trio.sleep(0.02)


async def test_under_a_service_manager_without_a_broker(tmp_path: Path) -> None:
    async with (
        Manager(tmp_path / "notify") as manager,
        running_daemon(
            tmp_path / "d",
            await free_port(),
            environ={"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "600000", "WATCHDOG_PID": ""},
        ) as daemon,
    ):
        await manager.until("READY=1")
        assert (daemon.directory / "pid").read_text() == f"{daemon.process.pid}\n"
        assert "not connected" in await manager.until("STATUS=")
        for _ in range(3):
            await manager.until("WATCHDOG=1")
        assert await daemon.get("/healthz") == (200, b"ok\n")
        daemon.process.send_signal(signal.SIGHUP)
        await manager.until("RELOADING=1")
        await manager.until("READY=1")
        assert await daemon.ends() == 0
        await manager.until("STOPPING=1")
        assert not (daemon.directory / "pid").exists()
        assert (daemon.directory / "output").read_text() == ""


async def test_sighup_reopens_the_log_and_reads_the_configuration_again(tmp_path: Path) -> None:
    port = await free_port()
    async with running_daemon(tmp_path / "d", port) as daemon:
        log = daemon.directory / "log.json"
        await told(log, "Choria Provisioner starting")
        log.rename(log.with_suffix(".1"))
        write_files(daemon.directory, port, helper=str(daemon.directory / "helper"), interval="5m", site="elsewhere")
        daemon.process.send_signal(signal.SIGHUP)
        await told(log, "Configuration reloaded")
        assert "site was changed, which needs a restart; the old value stays" in daemon.messages("warning")
        assert (await daemon.status())["interval"] == 300
        write_files(daemon.directory, port, helper="/nowhere", interval="9m", workers=-1)
        daemon.process.send_signal(signal.SIGHUP)
        await told(log, "The configuration is not reloaded, the old one stays")
        refused = daemon.messages("error")
        assert len(refused) == 2
        assert "workers: must be a whole number" in refused[0]
        assert "'/nowhere' can't be looked at" in refused[1]
        assert (await daemon.status())["interval"] == 300
        assert await daemon.ends(signal.SIGINT) == 0


async def test_no_secret_is_to_be_seen_from_outside(tmp_path: Path) -> None:
    async with running_daemon(
        tmp_path / "d", await free_port(), loglevel="debug", token=TOKEN, broker_provisioning_password=PASSWORD
    ) as daemon:
        await daemon.get("/metrics")
        seen = b"".join(
            [
                Path(f"/proc/{daemon.process.pid}/cmdline").read_bytes(),
                Path(f"/proc/{daemon.process.pid}/environ").read_bytes(),
                *[(await daemon.get(page))[1] for page in ("/metrics", "/status", "/readyz", "/healthz")],
            ]
        )
        limits = Path(f"/proc/{daemon.process.pid}/limits").read_text()
        assert await daemon.ends() == 0
    seen += (daemon.directory / "log.json").read_bytes() + (daemon.directory / "output").read_bytes()
    for secret in (TOKEN, PASSWORD):
        assert secret.encode() not in seen
    (core,) = [line for line in limits.splitlines() if line.startswith("Max core file size")]
    assert core.split()[4] == "0"


@pytest.mark.parametrize("page", ["/metrics", "/status", "/healthz", "/readyz"])
async def test_each_page_of_the_documentation_is_there(page: str, tmp_path: Path) -> None:
    async with running_daemon(tmp_path / "d", await free_port()) as daemon:
        code, _ = await daemon.get(page)
        assert code == 200
        assert await daemon.ends() == 0


async def test_a_port_in_use_ends_it_with_exit_2_and_one_line(tmp_path: Path) -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    async with listener, running_daemon(tmp_path / "d", await free_port()) as daemon:
        await daemon.get("/healthz")
        # Another of the same, on the port of somebody else.
        values = json.loads((daemon.directory / "provisioner.yaml").read_text())
        values.update(monitor_port=port, logfile=str(tmp_path / "log2"))
        (tmp_path / "two.yaml").write_text(json.dumps(values))
        argv = [sys.executable, "-m", "provisioner.cli.choria", "--config", str(tmp_path / "two.yaml")]
        argv += ["--choria-config", str(daemon.directory / "choria.cfg")]
        done = await trio.run_process(argv, capture_stderr=True, check=False, env=dict(os.environ))
        assert await daemon.ends() == 0
    assert done.returncode == 2
    assert done.stderr.decode() == (
        f"choria-provisioner: {tmp_path}/two.yaml: monitor_port: can't listen on this port: Address already in use"
        f" (found {port})\n"
    )
