"""Real Choria: the harness built, brokers, servers in provisioning mode, a Go candidate for leadership."""

import json
import shutil
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

from tests.interop.credentials import Authority, Issuer, Login, ProvisioningSigner
from tests.interop.process import Died, Process, free_port, wait_until

HARNESS = Path(__file__).parent / "harness"
BUILD_TIMEOUT = 900.0
"""Seconds for the first build with nothing cached: it fetches about 400 MB of modules (a minute on a fast line)."""
BUCKET_TIMEOUT = 150.0
"""A broker makes its leader election bucket 31 to 59 s after it starts."""
PASSWORD = "broker-provisioning-password-4711"
TOKEN = "provisioning-token-0815"
LEADER_TTL = 8
"""Seconds a leader's key lives on these brokers (Choria's default is 60)."""
RESTARTED_AS_MEMBER = 42
RESTARTED_TO_PROVISION = 43


def go() -> str | None:
    """The ``go`` command, or ``None``: then the tests of this folder are skipped."""
    return shutil.which("go")


def build(directory: Path) -> Path:
    """Builds the harness into ``directory``, with the user's own Go caches. Returns the program."""
    program = directory / "harness"
    command = [go() or "go", "build", "-mod=readonly", "-buildvcs=false", "-o", str(program), "."]
    subprocess.run(command, cwd=HARNESS, check=True, timeout=BUILD_TIMEOUT, stdin=subprocess.DEVNULL)
    return program


def configuration(settings: dict[str, object]) -> str:
    """A Choria configuration file."""
    return "".join(f"{key} = {value}\n" for key, value in settings.items())


class Broker:
    """A real broker on 127.0.0.1 with Choria Streams, TLS and a provisioning account.

    ``version`` 1 logs in with certificates of ``authority`` and verifies provisioning.jwt with ``signer`` (RSA);
    ``version`` 2 has the Organization Issuer ``issuer``, under the name ``choria``.
    """

    def __init__(self, version: int, directory: Path, harness: Path) -> None:
        self.version = version
        self.directory = directory
        self.harness = harness
        self.authority = Authority(directory)
        self.issuer = Issuer(directory)
        self.signer = ProvisioningSigner(directory)
        self.certificate, self.key = self.authority.issue("localhost", hosts=("127.0.0.1",))
        self._login = self.issuer.server("localhost")
        self.port = self.monitor = 0
        self.process = Process("broker", directory, [str(harness), "broker", str(directory / "broker.cfg")])

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"nats://localhost:{self.port}"

    def start(self) -> None:
        """Starts it on ports it has not had before, and waits until it accepts connections."""
        for attempt in range(5):
            self.port, self.monitor = free_port(), free_port()
            (self.directory / "broker.cfg").write_text(configuration(self._settings()))
            try:
                self.restart()
                return
            except Died:
                if attempt == 4 or "address already in use" not in self.process.text():
                    raise

    def restart(self) -> None:
        """Starts it again after its end, where it was and with what it had, and waits until it accepts connections."""
        self.process.log.unlink(missing_ok=True)
        self.process.start()
        wait_until(lambda: self.process.said("harness: broker ready") and self._answers(), "the broker")

    def wait_for_bucket(self) -> None:
        """Waits until the leader election bucket is there."""
        wait_until(lambda: "KV_CHORIA_LEADER_ELECTION" in self.streams(), "the election bucket", BUCKET_TIMEOUT)

    def streams(self) -> list[str]:
        """The names of all streams."""
        found = self._get("jsz?accounts=1&streams=1")
        return [
            stream["name"]
            for account in found.get("account_details", [])
            for stream in account.get("stream_detail", [])
        ]

    def connections(self) -> list[dict[str, Any]]:
        """All open connections: ``name``, ``account``, ``authorized_user``, ``subscriptions_list``, …"""
        return list(self._get("connz?auth=1&subs=1&limit=4096").get("connections") or [])

    def has_member(self, identity: str, account: str = "choria") -> bool:
        """Whether a server with this identity is connected in ``account`` and listens on its node subject."""
        subject = {"choria": f".node.{identity}", "provisioning": f"provisioning.node.{identity}"}[account]
        return any(
            connection.get("account") == account
            and any(heard.endswith(subject) for heard in connection.get("subscriptions_list") or [])
            for connection in self.connections()
        )

    def _answers(self) -> bool:
        try:
            self._get("varz")
        except OSError:
            return False
        return True

    def _get(self, page: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.monitor}/{page}", timeout=10) as answer:
            return dict(json.load(answer))

    def _settings(self) -> dict[str, object]:
        settings: dict[str, object] = {
            "identity": "localhost",
            "loglevel": "debug",
            "plugin.choria.use_srv": "false",
            "plugin.choria.broker_network": "true",
            "plugin.choria.network.listen_address": "127.0.0.1",
            "plugin.choria.network.client_port": self.port,
            "plugin.choria.stats_address": "127.0.0.1",
            "plugin.choria.stats_port": self.monitor,
            "plugin.choria.network.provisioning.client_password": PASSWORD,
            "plugin.choria.network.system.user": "system",
            "plugin.choria.network.system.password": "system-password",
            "plugin.choria.network.stream.store": self.directory / "streams",
            "plugin.choria.network.stream.leader_election_ttl": f"{LEADER_TTL}s",
        }
        provider = "file" if self.version == 1 else "choria"
        settings |= {
            "plugin.security.provider": provider,
            f"plugin.security.{provider}.certificate": self.certificate,
            f"plugin.security.{provider}.key": self.key,
            f"plugin.security.{provider}.ca": self.authority.ca,
        }
        if self.version == 1:
            return settings | {"plugin.choria.network.provisioning.signer_cert": self.signer.public}
        return settings | {
            "plugin.security.choria.token_file": self._login.token,
            "plugin.security.choria.seed_file": self._login.seed,
            "plugin.security.issuer.names": "choria",
            "plugin.security.issuer.choria.public": self.issuer.public,
        }

    def provisioning_jwt(self, **claims: object) -> str:
        """A provisioning.jwt of this deployment; ``claims`` are added or replace ours."""
        ours: dict[str, object] = {"cht": TOKEN, "chu": self.url}
        return (self.signer if self.version == 1 else self.issuer).provisioning(ours | claims)

    def client_settings(self, identity: str, login: Login | None = None) -> dict[str, object]:
        """A provisioner's Choria client configuration; ``login`` (version 2) or a certificate it makes (version 1)."""
        settings: dict[str, object] = {
            "identity": identity,
            "plugin.choria.use_srv": "false",
            "plugin.choria.middleware_hosts": f"localhost:{self.port}",
        }
        if self.version == 1:
            certificate, key = self.directory / f"{identity}.pem", self.directory / f"{identity}.key"
            if not certificate.exists():
                self.authority.issue(identity)
            return settings | {
                "plugin.security.provider": "file",
                "plugin.security.file.certificate": certificate,
                "plugin.security.file.key": key,
                "plugin.security.file.ca": self.authority.ca,
            }
        login = login or self.issuer.provisioner("provisioner_signer")
        return settings | {
            "plugin.security.provider": "choria",
            "plugin.security.choria.token_file": login.token,
            "plugin.security.choria.seed_file": login.seed,
            "plugin.security.choria.ca": self.authority.ca,
        }


class Server:
    """A real server without a configuration: its own directory, its own process, in provisioning mode.

    Its facts hold the configuration that it is to be given, and what the helper is to ``do`` (``site_helper.py``).
    ``claims`` are added to its provisioning.jwt, or replace what is there.

    With ``parse_only`` the accepted restart ends it with ``RESTARTED_AS_MEMBER`` (or ``RESTARTED_TO_PROVISION``) once
    the configuration that was written parses; otherwise the restarted server runs with it.
    """

    def __init__(
        self,
        broker: Broker,
        identity: str,
        directory: Path,
        *,
        do: str = "",
        parse_only: bool = False,
        **claims: object,
    ) -> None:
        directory.mkdir(parents=True)
        self.broker = broker
        self.identity = identity
        self.directory = directory
        self.config = directory / "server.cfg"
        facts = {"dc": "lab", "role": "web", "settings": self.member_settings(), "do": do}
        (directory / "facts.json").write_text(json.dumps(facts))
        token = directory / "provisioning.jwt"
        token.write_text(broker.provisioning_jwt(chf=str(directory / "facts.json"), **claims))
        argv = [
            str(broker.harness),
            "server",
            "--identity",
            identity,
            "--jwt",
            str(token),
            "--config",
            str(self.config),
        ]
        self.process = Process(identity, directory, argv + (["--parse-only"] if parse_only else []))

    def start(self) -> None:
        """Starts it; does not wait."""
        self.process.start()

    def waits_to_be_provisioned(self) -> bool:
        """Whether it is connected to the provisioning account and answers there."""
        return self.process.said("provisioning=true") and self.broker.has_member(self.identity, "provisioning")

    def is_member(self) -> bool:
        """Whether it was restarted and is connected as a normal member, by its own word and by the broker's."""
        return self.process.said("provisioning=false") and self.broker.has_member(self.identity)

    def member_settings(self) -> dict[str, str]:
        """A configuration that makes it a normal member of this broker's network, as a helper would give it."""
        common = {
            "identity": self.identity,
            "loglevel": "info",
            "plugin.choria.server.provision": "0",
            "plugin.choria.use_srv": "false",
            "plugin.choria.middleware_hosts": f"localhost:{self.broker.port}",
        }
        if self.broker.version == 1:
            return common | {
                "plugin.security.provider": "file",
                "plugin.security.file.certificate": f"{self.directory}/ssl/certificate.pem",
                "plugin.security.file.key": f"{self.directory}/ssl/private.pem",
                "plugin.security.file.ca": f"{self.directory}/ssl/ca.pem",
            }
        return common | {
            "plugin.security.provider": "choria",
            "plugin.security.choria.token_file": f"{self.directory}/server.jwt",
            "plugin.security.choria.seed_file": f"{self.directory}/server.seed",
            "plugin.security.choria.ca": str(self.broker.authority.ca),
            "plugin.security.issuer.names": "choria",
            "plugin.security.issuer.choria.public": self.broker.issuer.public,
        }

    def settings(self) -> dict[str, str]:
        """The configuration it wrote, parsed as plain ``key=value`` lines."""
        lines = [line for line in self.config.read_text().splitlines() if line and not line.startswith("#")]
        return dict(line.split("=", 1) for line in lines)


class Candidate:
    """A real Go candidate for the leadership of the provisioners."""

    def __init__(self, broker: Broker, identity: str, directory: Path) -> None:
        directory.mkdir(parents=True)
        settings = broker.client_settings(identity) | {
            "plugin.nats.user": "provisioner",
            "plugin.nats.pass": PASSWORD,
            "collectives": "provisioning",
            "main_collective": "provisioning",
            "loglevel": "info",
        }
        file = directory / "candidate.cfg"
        file.write_text(configuration(settings))
        self.process = Process(identity, directory, [str(broker.harness), "candidate", str(file)])
