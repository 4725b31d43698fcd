"""The login to a broker from the operator's files: what is sent, what is refused before, what a refusal says."""

import base64
import json
import logging
import ssl
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import evolve
from cryptography.hazmat.primitives import serialization
from nacl.signing import SigningKey

from provisioner.broker.connection import open_broker
from provisioner.broker.login import BrokerLogin, delays, openssl_name
from provisioner.bus.nats import NatsBus, open_nats
from provisioner.choria.settings import ChoriaSettings
from provisioner.config import Config
from provisioner.errors import ConfigError
from provisioner.secret import Secret
from provisioner.simulator.embedded import NatsServer, nats_server
from tests.integration.nats_faults import Authority, info, odd_server, read_until, reload, tls_config

PASSWORD = "broker-secret-4711"
SEED = "02" * 32


def config(**more: Any) -> Config:
    given = {"broker_provisioning_password": Secret(PASSWORD)} | more
    return Config(
        path=Path("p.yaml"),
        workers=1,
        interval=60.0,
        interval_text="1m",
        helper=("/bin/true",),
        token=Secret("t"),
        site="s",
        **given,
    )


def token(**claims: Any) -> str:
    good = {
        "purpose": "choria_client_id",
        "callerid": "choria=provisioner_signer",
        "ou": "choria",
        "permissions": {"provisioner": True},
        "exp": int(time.time()) + 3600,
    }
    parts = [{"alg": "EdDSA", "typ": "JWT"}, good | claims]
    return ".".join([*(base64.urlsafe_b64encode(json.dumps(p).encode()).decode().rstrip("=") for p in parts), "c2ln"])


class Site:
    """The files of one site."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority(directory)
        self.certificate, self.key = self.authority.certify("us.example.net")
        self.token, self.seed = directory / "us.jwt", directory / "us.key"
        self.token.write_text(token() + "\n")
        self.seed.touch(mode=0o600)
        self.seed.write_text(SEED)

    def file(self, **more: Any) -> ChoriaSettings:
        return ChoriaSettings(
            **{  # type: ignore[arg-type]
                "identity": "us.example.net",
                "security_provider": "file",
                "file_certificate": str(self.certificate),
                "file_key": str(self.key),
                "file_ca": str(self.authority.ca),
                "use_srv": False,
            }
            | more
        )

    def choria(self, **more: Any) -> ChoriaSettings:
        return ChoriaSettings(
            **{  # type: ignore[arg-type]
                "identity": "us.example.net",
                "security_provider": "choria",
                "choria_token_file": str(self.token),
                "choria_ca": str(self.authority.ca),
                "use_srv": False,
            }
            | more
        )

    def broker(self, *, verify: bool = False, name: str = "server", alternative: Sequence[str] = ("localhost",)) -> str:
        """The configuration of a nats-server that takes the password."""
        pair = self.authority.certify(name, *alternative)
        login = f'authorization {{ user: provisioner, password: "{PASSWORD}" }}\n'
        return tls_config(*pair, self.authority.ca, verify=verify) + login


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def login_of(settings: ChoriaSettings, **more: Any) -> BrokerLogin:
    return BrokerLogin(config(**more), settings, environ={})


def at(server: NatsServer, settings: ChoriaSettings) -> ChoriaSettings:
    return evolve(settings, middleware_hosts=(f"nats://localhost:{server.port}",))


async def up(bus: NatsBus) -> None:
    with trio.fail_after(20):
        await bus.wait_connected()
    await bus.flush()


async def said(bus: NatsBus, text: str) -> str:
    with trio.fail_after(20):
        while text not in bus.last_error:
            await trio.sleep(0.01)
    return bus.last_error


# --- what is sent --------------------------------------------------------------------------------------------------


async def _sent(settings: ChoriaSettings, **more: Any) -> dict[str, Any]:
    lines: list[bytes] = []

    async def serve(stream: trio.SocketStream) -> None:
        await stream.send_all(info(nonce="MZ6jMVYnCxDbtQ8"))
        lines.append(await read_until(stream, b"PING"))

    async with odd_server(serve) as odd:
        options = evolve(login_of(settings, **more).options(), tls=None)

        async def resolve() -> list[str]:
            return [odd]

        async with open_nats(resolve, options):
            with trio.fail_after(20):
                while not lines:
                    await trio.sleep(0.01)
    found = json.loads(lines[0].removeprefix(b"CONNECT ").partition(b"\r\n")[0])
    return {key: found[key] for key in ("user", "pass", "auth_token", "jwt", "sig", "name") if key in found}


async def test_with_certificates_user_and_password_are_sent(site: Site) -> None:
    assert await _sent(site.file()) == {"user": "provisioner", "pass": PASSWORD, "name": "us.example.net"}


async def test_with_an_organization_issuer_token_and_signature_too(site: Site) -> None:
    text = site.token.read_text().strip()
    sent = await _sent(site.choria())
    signature = base64.urlsafe_b64decode(sent.pop("sig") + "==")
    SigningKey(bytes.fromhex(SEED)).verify_key.verify(b"MZ6jMVYnCxDbtQ8", signature)
    name = sent.pop("name")
    assert name
    assert sent == {"user": "provisioner", "pass": PASSWORD, "auth_token": text, "jwt": text}


async def test_insecure_sends_nothing_but_what_is_configured(site: Site) -> None:
    nothing = Secret("")
    plain = ChoriaSettings(identity="us.example.net", security_provider="choria", nats_user="u", nats_pass=Secret("p"))
    login = login_of(plain, choria_insecure=True, broker_provisioning_password=nothing)
    found = login.credentials()
    assert (found.user, found.password, found.token, found.sign) == ("u", Secret("p"), nothing, None)
    assert login.options().tls is None
    assert login_of(plain, choria_insecure=True).credentials().user == "provisioner"
    half = evolve(plain, nats_pass=nothing)
    assert login_of(half, choria_insecure=True, broker_provisioning_password=nothing).credentials().user == ""


def test_the_inbox_is_that_of_the_caller(site: Site) -> None:
    """The vector of wire-protocol 1.3: the MD5 of the caller id."""
    assert login_of(site.file()).options().inbox_prefix == "provisioning.reply"
    prefix = login_of(site.choria()).options().inbox_prefix
    assert prefix == "provisioning.reply.9cfa4a5b5c52a6298349d8414b009862"
    with pytest.raises(ConfigError, match=r"token_file: can't be read: No such file or directory"):
        login_of(site.choria(choria_token_file="/nowhere")).options()


def test_the_options_are_those_of_a_choria_client(site: Site) -> None:
    options = login_of(site.file(connect_timeout=7.0)).options()
    assert (options.connect_timeout, options.ping_interval) == (7.0, 30.0)
    pauses = delays()
    found = [next(pauses) for _ in range(20)]
    nominal = [0.75, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5] + [5] * 10
    assert all(low / 2 <= pause < low * 1.5 for low, pause in zip(nominal, found, strict=True))


# --- what is refused before connecting ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("claims", "problem"),
    [
        ({"purpose": "choria_server"}, "the token's purpose is 'choria_server'"),
        ({"permissions": {}}, "lacks the permission `provisioner`"),
        ({"exp": 1_700_000_000}, "the token expired at 2023-11-14T22:13:20Z; here it is 20"),
        ({"exp": None}, "the token never expires"),
    ],
)
async def test_a_bad_token_is_told_before_connecting_and_a_new_one_taken(
    site: Site, claims: dict[str, Any], problem: str
) -> None:
    asked = 0

    async def serve(stream: trio.SocketStream) -> None:
        nonlocal asked
        asked += 1

    async with odd_server(serve) as odd, nats_server(site.broker()) as server:
        settings = site.choria(middleware_hosts=(odd,))
        login = login_of(settings)
        urls = [odd]

        async def resolve() -> list[str]:
            return urls

        options = evolve(login.options(), delays=partial(iter, [0.02]))
        site.token.write_text(token(**claims))
        async with open_nats(resolve, options) as bus:
            text = await said(bus, problem)
            assert "choria.cfg: plugin.security.choria.token_file: the token" in text
            assert str(site.token) in text
            assert asked == 0
            urls[:] = [f"nats://localhost:{server.port}"]
            site.token.write_text(token())
            await up(bus)


def _faults(ask: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        ask()
    return str(caught.value)


def test_bad_files_are_told_with_file_and_key(site: Site, tmp_path: Path) -> None:
    nonsense, huge, binary = tmp_path / "nonsense", tmp_path / "huge", tmp_path / "binary"
    nonsense.write_text("nonsense")
    huge.write_text("x" * 300_000)
    binary.write_bytes(b"\xff\xfe")
    ours = "choria.cfg: plugin.security"

    seed = login_of(site.choria(choria_seed_file=str(nonsense)))
    assert f"{ours}.choria.seed_file: not an Ed25519 seed: 64 hex digits" in _faults(seed.credentials)
    for path, problem in ((huge, "is over 262144 bytes"), (binary, "is not text"), (tmp_path, "can't be read: Is a d")):
        assert f"{ours}.choria.token_file: {problem}" in _faults(
            login_of(site.choria(choria_token_file=str(path))).credentials
        )
    assert f"{ours}.choria.token_file: must be set" in _faults(login_of(site.choria(choria_token_file="")).credentials)
    certificate = login_of(site.file(file_certificate=str(nonsense)))
    assert f"{ours}.file.certificate: the certificate can't be read: PEM" in _faults(certificate.credentials)
    assert f"{ours}.file.certificate, plugin.security.file.key: can't be used by TLS" in _faults(certificate.tls)
    # A configured authority that isn't there doesn't switch verification off.
    for settings in (site.file(file_ca="/nowhere"), site.choria(choria_ca="/nowhere")):
        assert "ca: can't be read: No such file or directory (found /nowhere)" in _faults(login_of(settings).tls)
    assert f"{ours}.file.ca: can't be used by TLS" in _faults(login_of(site.file(file_ca=str(nonsense))).tls)
    _, other = site.authority.certify("other.example.net")
    assert "does not belong to its key" in _faults(login_of(site.file(file_key=str(other))).tls)
    suites = login_of(site.file(cipher_suites=("TLS_RSA_WITH_RC4_128_SHA",)))
    assert "plugin.security.cipher_suites: unknown cipher suite 'TLS_RSA_WITH_RC4_128_SHA'" in _faults(suites.tls)


def test_an_encrypted_key_is_told(site: Site, tmp_path: Path) -> None:
    key = serialization.load_pem_private_key(site.key.read_bytes(), None)
    locked = tmp_path / "locked.pem"
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"password"),
        )
    )
    assert "the private key is encrypted" in _faults(login_of(site.file(file_key=str(locked))).tls)


def test_what_looks_wrong_is_warned_about_once(site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    site.key.chmod(0o644)
    other = Authority(tmp_path, "other")
    login = login_of(site.file(file_ca=str(other.ca)), broker_provisioning_password=Secret(""))
    for _ in range(3):
        login.tls()
        login.credentials()
    said_of_it = [record.getMessage() for record in caplog.records]
    assert len(said_of_it) == 3
    assert any("broker_provisioning_password is not set" in text for text in said_of_it)
    assert any(f"{site.key} (plugin.security.file.key) is open to everybody (mode 0644)" in text for text in said_of_it)
    assert any("was not issued by an authority in" in text for text in said_of_it)


# --- TLS against a real server -------------------------------------------------------------------------------------


async def test_both_kinds_of_login_reach_a_server_over_tls(site: Site) -> None:
    async with nats_server(site.broker(verify=True)) as server:
        async with open_broker(config(), at(server, site.file()), environ={}) as bus:
            await up(bus)
    async with nats_server(site.broker()) as server:
        async with open_broker(config(), at(server, site.choria()), environ={}) as bus:
            await up(bus)


async def test_a_refusal_lists_what_was_sent_and_what_is_likely(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    site.key.chmod(0o644)
    async with nats_server(site.broker()) as server:
        wrong = config(broker_provisioning_password=Secret("another-secret-0815"))
        async with open_broker(wrong, at(server, site.file()), environ={}) as bus:
            text = await said(bus, "Authorization Violation")
        assert text == (
            f"nats://localhost:{server.port}: Authorization Violation; a broker never says why. Sent: user provisioner "
            f"with a password (****), the certificate of CN=us.example.net. Likely: {site.key} "
            "(plugin.security.file.key) is open to everybody (mode 0644): make it 0600; the password is not the "
            "broker's plugin.choria.network.provisioning.client_password; the broker has no such password, and so no "
            "provisioning account; the broker's authority did not issue the certificate (its plugin.security.file.ca)"
        )
        async with open_broker(wrong, at(server, site.choria()), environ={}) as bus:
            text = await said(bus, "Authorization Violation")
        assert "the token of choria=provisioner_signer (organization choria, until 20" in text
        assert "a signature over the broker's nonce" in text
        assert "plugin.security.issuer.names" in text
    assert "another-secret" not in caplog.text
    assert site.token.read_text().strip() not in caplog.text
    assert SEED not in caplog.text


async def test_a_broker_of_another_authority_is_refused_and_the_files_are_named(site: Site, tmp_path: Path) -> None:
    other = Authority(tmp_path, "other")
    async with nats_server(site.broker()) as server:
        settings = at(server, site.file(file_ca=str(other.ca)))
        async with open_broker(config(), settings, environ={}) as bus:
            text = await said(bus, "certificate is not accepted")
    assert text.endswith(f"; it was verified against {other.ca} (plugin.security.file.ca)")


async def test_a_broker_without_tls_is_refused(site: Site, nats: NatsServer) -> None:
    async with open_broker(config(), at(nats, site.file()), environ={}) as bus:
        assert "choria_insecure: true is for brokers without TLS" in await said(bus, "does not offer TLS")
    async with open_broker(config(choria_insecure=True), at(nats, site.file()), environ={}) as bus:
        await up(bus)


async def test_a_missing_client_certificate_is_told(site: Site) -> None:
    async with nats_server(site.broker(verify=True)) as server:
        settings = at(server, site.file(file_certificate="", file_key=""))
        async with open_broker(config(), settings, environ={}) as bus:
            with trio.fail_after(20):
                while not bus.last_error:
                    await trio.sleep(0.01)
            assert not bus.connected


async def test_the_name_may_stand_in_the_subject_only_where_certificates_are_old(site: Site) -> None:
    old = site.broker(name="localhost", alternative=())
    async with nats_server(old) as server:
        async with open_broker(config(), at(server, site.file()), environ={}) as bus:
            await said(bus, "certificate is not accepted: Hostname mismatch")
        legacy = at(server, site.file(support_legacy_certificates=True))
        async with open_broker(config(), legacy, environ={}) as bus:
            await up(bus)


async def test_without_an_authority_only_provider_choria_goes_unverified(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    async with nats_server(site.broker()) as server:
        async with open_broker(config(), at(server, site.choria(choria_ca="")), environ={}) as bus:
            await up(bus)
        assert "the broker is not verified: anybody can play it" in caplog.text
        async with open_broker(config(), at(server, site.file(file_ca="")), environ={}) as bus:
            text = await said(bus, "certificate is not accepted")
    assert text.endswith("; it was verified against the system's authorities")


async def test_a_renewed_certificate_is_taken_up_at_the_next_connection(site: Site, tmp_path: Path) -> None:
    other = Authority(tmp_path, "other")
    pair = other.certify("renewed.example.net")
    async with nats_server(site.broker(verify=True)) as server:
        async with open_broker(config(), at(server, site.file()), environ={}) as bus:
            await up(bus)
            # The server goes over to another authority, and so do our files.
            ours = site.authority.ca.read_text()
            site.authority.ca.write_text(ours + other.ca.read_text())
            site.certificate.write_bytes(pair[0].read_bytes())
            site.key.write_bytes(pair[1].read_bytes())
            await reload(server, (server.directory / "nats.conf").read_text())
            await server.restart()
            with trio.fail_after(20):
                await bus.wait_epoch_change(1)


def test_names_of_cipher_suites() -> None:
    suites = {
        "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
        "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
        "TLS_RSA_WITH_AES_256_CBC_SHA": "AES256-SHA",
        "TLS_RSA_WITH_AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    }
    known = {cipher["name"] for cipher in _everything().get_ciphers()}
    for go, openssl in suites.items():
        assert openssl_name(go) == openssl
        assert openssl in known


def _everything() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_ciphers("ALL")
    return context


def test_chosen_cipher_suites_are_used_and_curves_warned_about(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    settings = site.file(cipher_suites=("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",), ecc_curves=("X25519",))
    context = login_of(settings).tls()
    older = [cipher["name"] for cipher in context.get_ciphers() if cipher["protocol"] != "TLSv1.3"]
    assert older == ["ECDHE-RSA-AES128-GCM-SHA256"]
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert "plugin.security.ecc_curves is not used here" in caplog.text
