"""Our daemon enrols real servers on a real broker: what issue and operators are promised, seen from the other side."""

import base64
import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509 import load_pem_x509_certificate

from tests.interop.choria import PASSWORD, RESTARTED_AS_MEMBER, TOKEN, Broker, Server
from tests.interop.conftest import StartDaemon, StartServer
from tests.interop.daemon import Daemon
from tests.interop.process import free_port, until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1200)]

only_certificates = pytest.mark.parametrize("version", [1], ids=["v1"])
only_issuer = pytest.mark.parametrize("version", [2], ids=["v2"])


async def all_members(servers: Iterable[Server]) -> None:
    for server in servers:
        await until(server.is_member, f"{server.identity} connected as a member")


async def until_ended(daemon: Daemon, outcome: str, count: int = 1) -> None:
    await until(lambda: daemon.ended(outcome) >= count, f"{count} cycles that ended as {outcome}")


@only_certificates
async def test_a_server_gets_the_certificate_it_asked_for(start_server: StartServer, start_daemon: StartDaemon) -> None:
    server = start_server("csr.example.net")
    daemon = start_daemon()
    await all_members([server])
    certificate = load_pem_x509_certificate((server.directory / "ssl/certificate.pem").read_bytes())
    key = load_pem_private_key((server.directory / "ssl/private.pem").read_bytes(), None)
    assert certificate.public_key() == key.public_key()
    assert server.settings() == server.member_settings()
    (given,) = daemon.inputs(server.identity)
    assert given["identity"] == server.identity
    assert given["jwt"]["purpose"] == "choria_provisioning"
    assert given["ed25519_pubkey"] is None
    assert daemon.ended("provisioned") == 1


@only_certificates
async def test_a_server_gets_a_private_key(start_server: StartServer, start_daemon: StartDaemon) -> None:
    server = start_server("key.example.net", do="key")
    daemon = start_daemon()
    await all_members([server])
    written = load_pem_private_key((server.directory / "ssl/private.pem").read_bytes(), None)
    made = load_pem_private_key((daemon.state / "key.example.net.key").read_bytes(), None)
    assert written.public_key() == made.public_key()
    certificate = load_pem_x509_certificate((server.directory / "ssl/certificate.pem").read_bytes())
    assert certificate.public_key() == made.public_key()


@only_issuer
async def test_a_server_gets_a_token_of_its_own(
    broker: Broker, start_server: StartServer, start_daemon: StartDaemon
) -> None:
    server = start_server("ed25519.example.net")
    daemon = start_daemon()
    await all_members([server])
    assert f"Extracted remote identity {server.identity} from JWT token" in broker.process.text()
    (given,) = daemon.inputs(server.identity)
    assert given["csr"] is None
    assert given["ed25519_pubkey"]["directory"] == str(server.directory)
    assert given["jwt"]["ou"] == "choria"
    assert daemon.ended("provisioned") == 1


@only_certificates  # and the other kind beside it: a round takes a minute
async def test_a_deferred_server_is_configured_in_the_next_round(
    brokers: dict[int, Broker], start_server: StartServer, start_daemon: StartDaemon
) -> None:
    pairs = [
        (
            start_server(f"defer{broker.version}.example.net", broker, do="defer"),
            start_daemon(f"daemon{version}", broker),
        )
        for version, broker in brokers.items()
    ]
    for server, daemon in pairs:
        await until_ended(daemon, "deferred")
        assert not server.config.exists()
        assert "not before its owner is known" in daemon.process.text()
    for server, daemon in pairs:
        await all_members([server])
        assert len(daemon.inputs(server.identity)) == 2
        assert (daemon.ended("provisioned"), daemon.metric("provision_errors")) == (1, 0)


async def test_a_server_is_shut_down(start_server: StartServer, start_daemon: StartDaemon) -> None:
    server = start_server("shutdown.example.net", do="shutdown")
    daemon = start_daemon()
    await until(lambda: server.process.code() is not None, "the server's end")
    assert server.process.code() == 0
    assert not server.config.exists()
    if " with splay 0s" in server.process.text():
        return  # such a server, one in ten, may be gone before its answer is
    await until_ended(daemon, "shut_down")
    assert daemon.metric("helper_shutdown_requests") == 1
    assert daemon.metric("provision_errors") == 0
    assert daemon.ended("provisioned") == 0


async def test_a_wrong_token_is_refused_in_the_servers_own_words(
    start_server: StartServer, start_daemon: StartDaemon
) -> None:
    server = start_server("token.example.net")
    daemon = start_daemon(token="not-the-token")
    await until_ended(daemon, "refused")
    assert "Incorrect provision token supplied" in daemon.process.text()
    assert daemon.inputs(server.identity) == []
    assert not server.config.exists()
    assert server.waits_to_be_provisioned()


async def test_a_second_provisioner_is_refused_by_the_lock(
    start_server: StartServer, start_daemon: StartDaemon
) -> None:
    server = start_server("locked.example.net", do="defer")
    first = start_daemon("first", identity="first.example.net")
    await until_ended(first, "deferred")
    first.process.stop()
    second = start_daemon("second", identity="second.example.net")
    await until_ended(second, "locked")
    assert second.metric("provision_errors") == 0
    assert second.inputs(server.identity) == []
    assert not server.config.exists()


@pytest.mark.parametrize("optional", [False, True], ids=["mandatory", "optional"])
async def test_an_upgrade_from_an_unreachable_repository(
    start_server: StartServer, start_daemon: StartDaemon, version: int, *, optional: bool
) -> None:
    server = start_server("upgrade.example.net", do="upgrade", update=True)
    features = {"jwt": True, "upgrades": True, "pki" if version == 1 else "ed25519": True}
    repository = f"http://127.0.0.1:{free_port()}/"
    daemon = start_daemon(features=features, upgrades_repository=repository, upgrades_optional=optional)
    if optional:
        await all_members([server])
        assert daemon.ended("upgrade_failed") == 0
    else:
        await until_ended(daemon, "upgrade_failed")
        assert not server.config.exists()
    assert "Update to version 99.0.0 failed, release rolled back" in daemon.process.text()


async def test_ten_servers_at_once(start_server: StartServer, start_daemon: StartDaemon) -> None:
    servers = [start_server(f"ten{number}.example.net") for number in range(10)]
    for server in servers:
        await until(server.waits_to_be_provisioned, f"{server.identity} in provisioning mode")
    daemon = start_daemon()
    await all_members(servers)
    await until_ended(daemon, "provisioned", 10)
    assert daemon.ended("provisioned") == 10
    assert daemon.metric("provision_errors") == 0
    assert daemon.metric("discovered") + daemon.metric("event_discovered") == 10


async def test_a_restarted_server_keeps_its_settings_when_only_parsed(
    start_server: StartServer, start_daemon: StartDaemon
) -> None:
    server = start_server("parsed.example.net", parse_only=True)
    start_daemon()
    await until(lambda: server.process.code() is not None, "the restart")
    assert server.process.code() == RESTARTED_AS_MEMBER


async def test_no_secret_is_to_be_found(broker: Broker, start_server: StartServer, start_daemon: StartDaemon) -> None:
    """At ``--debug``: not in the log, on a page, in the arguments or environment of the daemon or of its helper."""
    server = start_server("secret.example.net", do="key" if broker.version == 1 else "")
    refused = start_server("refused.example.net", cht="the-token-of-another-site")
    daemon = start_daemon()
    await all_members([server])
    await until_ended(daemon, "refused")
    secrets = {
        "the provisioning token": TOKEN,
        "the broker's password": PASSWORD,
        **signed_parts("the provisioner's token", daemon.login.token),
        **signed_parts("a provisioning.jwt", server.directory / "provisioning.jwt"),
        **signed_parts("a provisioning.jwt that was refused", refused.directory / "provisioning.jwt"),
        "the provisioner's seed": daemon.login.seed.read_text(),
        "a private key": "PRIVATE KEY",
        "a sealed key": "Proc-Type",
    }
    if broker.version == 1:
        secrets |= lines_of("the provisioner's key", broker.directory / f"{daemon.identity}.key")
        secrets |= lines_of("the key made by the helper", daemon.state / f"{server.identity}.key")
    else:
        secrets |= signed_parts("the token that was issued", server.directory / "server.jwt")
    places = {
        "the log": daemon.process.text(),
        **{f"page {page}": daemon.page(page) for page in ("metrics", "status", "healthz", "readyz")},
        **{f"{name} of the daemon": Path(f"/proc/{daemon.process.pid}/{name}").read_text() for name in PROC},
        **{f"{name} of the helper": (daemon.state / f"{server.identity}.{name}").read_text() for name in PROC},
    }
    assert "Fetching JWT" in places["the log"]
    assert "--debug" in places["cmdline of the daemon"]
    assert all(places.values())
    assert found(secrets, {"the helper's input": json.dumps(daemon.inputs(server.identity))})  # the search does find
    assert found(secrets, places) == []


PROC = ("cmdline", "environ")


def signed_parts(name: str, file: Path) -> dict[str, str]:
    """Claims and signature of a token, as it is written; its header says nothing."""
    _, claims, signature = file.read_text().strip().split(".")
    return {f"{name}: claims": claims, f"{name}: signature": signature}


def lines_of(name: str, file: Path) -> dict[str, str]:
    """The lines of a PEM file that hold key bytes (the last is too short to be sure of)."""
    return {f"{name}: line {number}": line for number, line in enumerate(file.read_text().splitlines()[1:-2])}


def found(secrets: dict[str, str], places: dict[str, str]) -> list[str]:
    """Which secret stands where: as it is, or inside something that was encoded with base64."""
    return [
        f"{secret} in {place}"
        for secret, text in secrets.items()
        for place, content in places.items()
        if any(form in content for form in forms(text))
    ]


def forms(secret: str) -> set[str]:
    """A secret as it is, and the base64 digits that depend on it alone, at each of three alignments."""
    encoded = {secret}
    for skipped in range(3):
        whole = base64.b64encode(b"\0" * skipped + secret.encode()).decode().rstrip("=")
        encoded.add(whole[-(-skipped * 8 // 6) : -1])
    return encoded
