"""The operator's commands against real Choria: check, a dry run that leaves a server as it was, and one server done."""

import json
import os
import re
import sys
from pathlib import Path

import pytest
import trio

from tests.interop.choria import PASSWORD, RESTARTED_AS_MEMBER, TOKEN, Broker, Server, configuration
from tests.interop.conftest import StartServer
from tests.interop.process import until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1200)]

IDENTITY = "tools.example.net"


def contents(directory: Path) -> dict[str, tuple[int, bytes]]:
    """Every file below a directory, its mode and its bytes; the process's own log excepted."""
    return {
        str(path.relative_to(directory)): (path.stat().st_mode, path.read_bytes())
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.suffix != ".log"
    }


def files(broker: Broker, server: Server, directory: Path) -> list[str]:
    """The operator's two files and a helper that makes the server a member."""
    directory.mkdir()
    answer: dict[str, object] = {"configuration": server.member_settings()}
    if broker.version == 1:  # its private key comes from the helper too, and is sealed for the server
        certificate, key = broker.authority.issue(server.identity)
        answer |= {"certificate": certificate.read_text(), "key": key.read_text()}
        answer |= {"ca": broker.authority.ca.read_text(), "ssldir": f"{server.directory}/ssl"}
    helper = directory / "helper"
    helper.write_text(f"#!/bin/sh\ncat >/dev/null\ncat <<'END'\n{json.dumps(answer)}\nEND\n")
    helper.chmod(0o755)
    keys: dict[str, object] = {
        "helper": str(helper),
        "token": TOKEN,
        "broker_provisioning_password": PASSWORD,
        "features": {"jwt": True, "ed25519": broker.version == 2},
        "jwt_verify_cert": str(broker.signer.public) if broker.version == 1 else broker.issuer.public,
        "audit_log": str(directory / "audit"),
    }
    settings = broker.client_settings("prov.example.net")
    if broker.version == 2:
        login = broker.issuer.provisioner("provisioner_signer")
        settings = broker.client_settings("prov.example.net", login)
        keys |= {"jwt_signing_key": str(login.seed), "jwt_signing_token": str(login.token)}
    (directory / "p.yaml").write_text(json.dumps(keys))
    (directory / "p.yaml").chmod(0o600)
    (directory / "choria.cfg").write_text(configuration(settings))
    return ["--config", str(directory / "p.yaml"), "--choria-config", str(directory / "choria.cfg")]


async def command(*words: str) -> tuple[int, str]:
    environment = {name: value for name, value in os.environ.items() if name != "USER"}
    run = await trio.run_process(
        [sys.executable, "-m", "provisioner.cli.choria", *words],
        capture_stdout=True,
        capture_stderr=True,
        check=False,
        env=environment,
    )
    assert b"Traceback" not in run.stderr
    return run.returncode, run.stdout.decode() + run.stderr.decode()


async def test_a_dry_run_and_then_the_server_itself(broker: Broker, start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(IDENTITY, parse_only=True)
    names = files(broker, server, tmp_path / "operator")
    await until(server.waits_to_be_provisioned, "the server in provisioning mode")
    code, out = await command("check", "--wait", "60", *names)
    assert code == 0, out
    assert re.search(r"ok    broker: discovery and events are allowed; [1-9]\d* servers answer", out)

    before = contents(server.directory)
    code, out = await command("provision", "--wait", "60", "--dry-run", *names, IDENTITY)
    assert code == 0, out
    assert out.endswith(f"{IDENTITY}: would end as provisioned\n")
    assert "plugin.choria.server.provision = 0" in out
    assert contents(server.directory) == before
    code, out = await command("provision", "--wait", "60", "--dry-run", "--with-jwt", *names, IDENTITY)
    assert code == 0, out
    assert "Fetching JWT" in out
    assert contents(server.directory) == before
    assert server.process.code() is None

    code, out = await command("provision", "--wait", "60", *names, IDENTITY)
    assert code == 0, out
    assert re.search(rf"(?m)^{IDENTITY}: provisioned after ", out)
    await until(lambda: server.process.code() is not None, "the restart of the server")
    assert server.process.code() == RESTARTED_AS_MEMBER
    assert server.settings() == server.member_settings()
    first = server.config.read_text().splitlines()[0]
    assert "(prov.example.net.cli)" in first
    (entry,) = [json.loads(line) for line in (tmp_path / "operator" / "audit").read_text().splitlines()]
    assert (entry["outcome"], entry["provisioner"]) == ("provisioned", "prov.example.net.cli")
    assert entry["request_ids"][-2] in first
    assert (entry["jti"] is not None) == (broker.version == 2)
    assert (entry["certificate_serial"] is not None) == (broker.version == 1)
    if broker.version == 1:
        assert (server.directory / "ssl" / "private.pem").read_text().split() == (
            (broker.directory / f"{IDENTITY}.key").read_text().split()
        )
