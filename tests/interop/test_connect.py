"""From choria.cfg and the YAML to a real broker: both kinds of login, and what a refusal tells (wire-protocol 1)."""

import hashlib
import logging
from pathlib import Path, PurePath
from typing import Any

import pytest
import trio

from provisioner.broker.connection import open_broker
from provisioner.choria.settings import ChoriaSettings, read_settings
from provisioner.config import Config
from provisioner.secret import Secret
from tests.interop.choria import PASSWORD, Broker, configuration
from tests.interop.process import until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1200)]


def settings_for(broker: Broker, **more: Any) -> ChoriaSettings:
    """The settings of a provisioner's choria.cfg, read as the daemon reads it."""
    text = configuration(broker.client_settings("connect.example.net") | more)
    return read_settings([(PurePath("/choria.cfg"), text)], environ={}, default_identity="")


def config(password: str = PASSWORD) -> Config:
    """The YAML, as far as a login needs it."""
    return Config(
        path=Path("p.yaml"),
        workers=1,
        interval=60.0,
        interval_text="1m",
        helper=("/bin/true",),
        token=Secret("t"),
        site="s",
        broker_provisioning_password=Secret(password),
    )


async def test_a_broker_lets_us_in_and_shows_our_name(broker: Broker) -> None:
    async with open_broker(config(), settings_for(broker), environ={"USER": "provisioning"}) as bus:
        with trio.fail_after(60):
            await bus.wait_connected()
            await bus.flush()
        assert bus.last_error == ""
        ours = [each for each in broker.connections() if each.get("account") == "provisioning"]
        assert [each["name"] for each in ours] == ["connect.example.net" if broker.version == 1 else "provisioning"]
        prefix = "provisioning.reply."
        if broker.version == 2:
            prefix += hashlib.md5(b"provisioner_signer", usedforsecurity=False).hexdigest() + "."
        [inbox] = [each for each in ours[0]["subscriptions_list"] if each.startswith("provisioning.reply.")]
        assert inbox.startswith(prefix)


async def test_a_wrong_password_is_told_with_what_was_sent(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with open_broker(config("not-the-password"), settings_for(broker), environ={}) as bus:
        await until(lambda: "Authorization Violation" in bus.last_error, "the broker's refusal")
        assert "Sent: user provisioner with a password (****)" in bus.last_error
        assert "plugin.choria.network.provisioning.client_password" in bus.last_error
    assert "not-the-password" not in caplog.text


async def test_a_token_without_the_permission_is_told_before_connecting(brokers: dict[int, Broker]) -> None:
    broker = brokers[2]
    login = broker.issuer.provisioner("powerless", may_provision=False)
    more = {"plugin.security.choria.token_file": login.token, "plugin.security.choria.seed_file": login.seed}
    async with open_broker(config(), settings_for(broker, **more), environ={}) as bus:
        await until(lambda: "lacks the permission `provisioner`" in bus.last_error, "our own check")
    assert not [each for each in broker.connections() if each.get("name") == "powerless"]


async def test_a_token_of_another_organization_is_refused(brokers: dict[int, Broker], tmp_path: Path) -> None:
    broker = brokers[2]
    stranger = type(broker.issuer)(tmp_path)
    login = stranger.provisioner("stranger")
    more = {"plugin.security.choria.token_file": login.token, "plugin.security.choria.seed_file": login.seed}
    async with open_broker(config(), settings_for(broker, **more), environ={}) as bus:
        await until(lambda: "Authorization Violation" in bus.last_error, "the broker's refusal")
        assert "the broker does not know the token's issuer" in bus.last_error


async def test_without_a_certificate_the_x509_broker_refuses(brokers: dict[int, Broker]) -> None:
    broker = brokers[1]
    more = {"plugin.security.file.certificate": "", "plugin.security.file.key": ""}
    async with open_broker(config(), settings_for(broker, **more), environ={}) as bus:
        await until(lambda: bus.last_error, "the broker's refusal")
        assert "no client certificate is configured" in bus.last_error
