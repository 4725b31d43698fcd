"""The daemon as a child process, as systemd starts it: its files, its log, its page, its end."""

import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
from attrs import define
from prometheus_client.parser import text_string_to_metric_families

CONFIGURATION = '{"configuration":{"plugin.choria.server.provision":"0","identity":"x"}}'

SH_HELPER = f"""#!/bin/sh
cat >/dev/null
echo '{CONFIGURATION}'
"""


@define
class Daemon:
    """One ``choria-provisioner run``."""

    process: trio.Process
    directory: Path
    port: int

    @property
    def log(self) -> list[dict[str, Any]]:
        """Its log so far: one object a line."""
        return [json.loads(line) for line in (self.directory / "log.json").read_text().splitlines()]

    def messages(self, level: str | None = None) -> list[str]:
        return [line["msg"] for line in self.log if level in {None, line["level"]}]

    async def get(self, path: str) -> tuple[int, bytes]:
        """One GET; waits until somebody listens."""
        while True:
            try:
                stream = await trio.open_tcp_stream("127.0.0.1", self.port)
                break
            except OSError:
                assert self.process.poll() is None, "the daemon has ended: " + str(self.messages()[-3:])
                await trio.sleep(0.02)
        async with stream:
            await stream.send_all(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            data = b"".join([chunk async for chunk in stream])
        if not data:
            raise trio.BrokenResourceError("the daemon ended before it answered")
        head, _, body = data.partition(b"\r\n\r\n")
        return int(head.split()[1]), body

    async def status(self) -> dict[str, Any]:
        code, body = await self.get("/status")
        assert code == 200
        found = json.loads(body)
        assert isinstance(found, dict)
        return found

    async def metrics(self) -> dict[str, float]:
        """Samples by name, with labels other than ``site`` behind it: ``rpc_errors{rpc=...}``; prefix taken off."""
        _, body = await self.get("/metrics")
        found = {}
        for family in text_string_to_metric_families(body.decode()):
            for sample in family.samples:
                labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()) if k != "site")
                # The parser puts back the suffix that the page leaves out.
                name = sample.name.removeprefix("choria_provisioner_").removesuffix("_total")
                found[f"{name}{{{labels}}}" if labels else name] = sample.value
        return found

    async def until(self, condition: Callable[[dict[str, Any]], bool], seconds: float = 30) -> dict[str, Any]:
        """Waits until the status fulfils a condition."""
        with trio.fail_after(seconds):
            while not condition(found := await self.status()):
                await trio.sleep(0.05)
        return found

    async def ends(self, number: int = signal.SIGTERM, seconds: float = 10) -> int:
        """Sends a signal and waits for the end; returns the exit code."""
        self.process.send_signal(number)
        with trio.fail_after(seconds):
            return await self.process.wait()


def write_helper(directory: Path, text: str = SH_HELPER) -> Path:
    path = directory / "helper"
    path.write_text(text)
    path.chmod(0o755)
    return path


def write_files(directory: Path, broker_port: int, *, choria: str = "", **keys: object) -> None:
    """The two configuration files; ``keys`` are of the YAML (JSON is YAML)."""
    directory.mkdir(exist_ok=True)
    (directory / "choria.cfg").write_text(
        f"identity = prov.example.net\nplugin.choria.middleware_hosts = 127.0.0.1:{broker_port}\n{choria}"
    )
    values = {
        "workers": 8,
        "interval": "1m",
        "token": "s3cret",
        "site": "testing",
        "choria_insecure": True,
        "logfile": str(directory / "log.json"),
        **keys,
    }
    (directory / "provisioner.yaml").write_text(json.dumps(values))


async def free_port() -> int:
    """A port that was free a moment ago; only where a program can't be told to take port 0."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port: int = listeners[0].socket.getsockname()[1]
    for listener in listeners:
        await listener.aclose()
    return port


@asynccontextmanager
async def running_daemon(
    directory: Path, broker_port: int, *, choria: str = "", environ: dict[str, str] | None = None, **keys: object
) -> AsyncIterator[Daemon]:
    """A daemon, killed at the end if it still runs."""
    port = await free_port()
    keys.setdefault("helper", str(directory / "helper"))
    if not (directory / "helper").exists():
        directory.mkdir(exist_ok=True)
        write_helper(directory)
    write_files(directory, broker_port, choria=choria, monitor_port=port, **keys)
    argv = [sys.executable, "-m", "provisioner.cli.choria", "run"]
    argv += ["--config", str(directory / "provisioner.yaml"), "--choria-config", str(directory / "choria.cfg")]
    argv += ["--pid", str(directory / "pid")]
    with (directory / "output").open("ab") as output:
        process = await trio.lowlevel.open_process(
            argv, stdin=-3, stdout=output, stderr=output, env={**os.environ, **(environ or {})}
        )
    try:
        yield Daemon(process, directory, port)
    finally:
        if process.poll() is None:
            process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
