"""Our own daemon as a process: its files, its pages, what its helper was given."""

import json
import re
import shlex
import sys
import urllib.request
from pathlib import Path
from typing import Any

import yaml

from tests.interop.choria import PASSWORD, TOKEN, Broker, configuration
from tests.interop.credentials import Login
from tests.interop.process import Died, Process, free_port

BOUND_TO_US = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.argv[1], sys.argv[1:])"
"""Asks Linux for a SIGKILL when we end, then becomes the program: no daemon outlives even a killed test run."""


class Daemon:
    """Our own ``choria-provisioner run --debug``, with ``site_helper.py`` as its helper.

    ``settings`` are added to its YAML, or replace what is there.
    """

    def __init__(
        self,
        broker: Broker,
        directory: Path,
        *,
        identity: str = "prov.example.net",
        login: Login | None = None,
        **settings: object,
    ) -> None:
        directory.mkdir(parents=True)
        self.broker = broker
        self.identity = identity
        self.state = directory / "helper"
        self.state.mkdir()
        self.monitor = free_port()
        self.login = login or broker.issuer.provisioner(f"signer_{identity.partition('.')[0]}")
        choria_config, config = directory / "choria.cfg", directory / "choria-provisioner.yaml"
        choria_config.write_text(configuration(broker.client_settings(identity, self.login)))
        helper = [sys.executable, str(Path(__file__).parent / "site_helper.py"), str(self.state), str(broker.directory)]
        ours: dict[str, object] = {
            "workers": 4,
            "interval": "1m",
            "helper": shlex.join(helper),
            "token": TOKEN,
            "site": "interop",
            "loglevel": "info",
            "logfile": "stdout",
            "broker_provisioning_password": PASSWORD,
            "monitor_port": self.monitor,
            "jwt_verify_cert": str(broker.signer.public) if broker.version == 1 else broker.issuer.public,
            "features": {"jwt": True, "pki" if broker.version == 1 else "ed25519": True},
        }
        if broker.version == 2:
            ours |= {"jwt_signing_key": str(self.login.seed), "jwt_signing_token": str(self.login.token)}
        config.write_text(yaml.safe_dump(ours | settings))
        program = Path(sys.executable).parent / "choria-provisioner"
        argv = [
            sys.executable,
            "-c",
            BOUND_TO_US,
            str(program),
            "--debug",
            "run",
            "--config",
            str(config),
            "--choria-config",
            str(choria_config),
        ]
        self.process = Process(directory.name, directory, argv)

    def start(self) -> None:
        """Starts it; does not wait."""
        self.process.start()

    def page(self, path: str = "metrics") -> str:
        """A page of its monitor port, or ``""`` while nobody answers there.

        Raises:
            Died: it has ended.
        """
        if self.process.code() is not None:
            raise Died(f"{self.process.name} ended with {self.process.code()}:\n{self.process.tail()}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.monitor}/{path}", timeout=10) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    def status(self) -> dict[str, Any]:
        """Its page ``/status``, or ``{}`` while nobody answers there."""
        return dict(json.loads(self.page("status") or "{}"))

    def leads(self) -> bool:
        """Whether it may act at this moment, by its own word."""
        return bool(self.status().get("leader"))

    def metric(self, name: str) -> float:
        """The sum of a metric over all its labels; ``name`` may hold one: ``outcomes{outcome="deferred"``."""
        name, _, label = f"choria_provisioner_{name}".partition("{")
        lines = [line for line in self.page().splitlines() if re.match(rf"{name}[{{ ]", line) and label in line]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def ended(self, outcome: str) -> int:
        """How many cycles ended in this outcome."""
        return int(self.metric(f'outcomes{{outcome="{outcome}"'))

    def at_helper(self, identity: str) -> bool:
        """Whether its helper was started for this server."""
        return (self.state / f"{identity}.environ").exists()

    def inputs(self, identity: str) -> list[dict[str, Any]]:
        """What its helper was given for a server, one object a run."""
        file = self.state / f"{identity}.inputs"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
