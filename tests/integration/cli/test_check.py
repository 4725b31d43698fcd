"""``check``: each way to get the files wrong, told by it and by ``run`` in the same words, with what to do."""

import datetime
import json
import re
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import NameOID

from provisioner.cli import check, findings
from provisioner.cli.choria import PROGRAM
from provisioner.cli.findings import Finding
from provisioner.errors import EXIT_FINDING, EXIT_OK, EXIT_REFUSED
from provisioner.simulator.embedded import NatsServer
from tests.integration.cli.test_bad_configuration import BAD, GOOD, place
from tests.integration.daemon import write_files, write_helper
from tests.interop.credentials import Authority, Issuer, cert_pem

__all__ = ["place"]

FILES_ONLY = ("--offline", "--no-helper")


def checked(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[dict[str, str]]]:
    """Exit code and findings of ``check --json``."""
    code = PROGRAM.main(["check", "--json", *words])
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    return code, json.loads(printed.out)["findings"]


def failures(found: list[dict[str, str]]) -> list[str]:
    return [one["text"] for one in found if one["level"] == "fail"]


@pytest.mark.parametrize("kind", BAD)
def test_each_bad_configuration_is_told_as_run_tells_it(
    kind: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``test_bad_configuration.py`` has the same for ``run``; here every line has what to do besides."""
    content, lines = BAD[kind]
    Path("p.yaml").write_text(content)
    Path("choria.cfg").write_text("identity = p.example.net\n")
    code, found = checked(capsys, "--config", "p.yaml", "--choria-config", "choria.cfg", *FILES_ONLY)
    assert code == EXIT_REFUSED
    assert failures(found) == [f"p.yaml: {line}" for line in lines]
    assert all(one["do"] and "p.yaml" in one["do"] for one in found if one["level"] == "fail")


CHORIA_CFG = {
    "a time to live that servers drop": (
        "ttl = 20",
        "ttl: servers of protocol version 1 drop requests of less than 30",
    ),
    "a time-out of hours": ("plugin.choria.network.connect_timeout = 5h", "plugin.choria.network.connect_timeout: "),
    "no certificate named": ("plugin.security.provider = file", "plugin.security.file.certificate: must be set"),
    "a certificate that isn't there": (
        "plugin.security.provider = file\nplugin.security.file.certificate = /nowhere/c.pem",
        "plugin.security.file.certificate: can't be read: No such file or directory (found /nowhere/c.pem)",
    ),
    "no token named": ("plugin.security.provider = choria", "plugin.security.choria.token_file: must be set"),
    "a time that is none": ("ttl = soon", "ttl: "),
    "a host without a port that is one": ("plugin.choria.middleware_hosts = broker:99999", "middleware_hosts: "),
    "a provider that we have not": ("plugin.security.provider = pkcs11", "plugin.security.provider: "),
    "an identity that can't be one": ("identity = a.>", "identity: it can't be a name: it has a wildcard (found a.>)"),
    "a key that must not stand beside": (
        "plugin.security.provider = choria\nplugin.security.server_anon_tls = true",
        "plugin.security.server_anon_tls: must not be set beside plugin.security.provider = choria",
    ),
}


@pytest.mark.parametrize("kind", CHORIA_CFG)
def test_each_bad_choria_cfg_is_told_by_both(kind: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content, said = CHORIA_CFG[kind]
    Path("p.yaml").write_text(GOOD)
    Path("choria.cfg").write_text(f"identity = p.example.net\n{content}\n")
    names = ["--config", "p.yaml", "--choria-config", "choria.cfg"]
    assert PROGRAM.main(["run", *names]) == EXIT_REFUSED
    by_run = capsys.readouterr().err.splitlines()
    code, found = checked(capsys, *names, *FILES_ONLY)
    assert code == EXIT_REFUSED
    told = failures(found)
    assert len(told) == 1
    assert said in told[0]
    assert by_run == [f"choria-provisioner: {told[0]}"]


def test_files_that_are_not_there(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = checked(capsys, "--config", "/nowhere/p.yaml", "--choria-config", "/nowhere/choria.cfg")
    assert code == EXIT_REFUSED
    assert [(one["text"], one["do"]) for one in found] == [
        ("/nowhere/p.yaml: can't be read: No such file or directory", "make /nowhere/p.yaml, or correct its name"),
        ("/nowhere/choria.cfg: there is no such file", "make /nowhere/choria.cfg, or correct its name"),
    ]


# --- keys and tokens ------------------------------------------------------------------------------------------------


def x509_settings(directory: Path, authority: Authority, name: str = "p.example.net") -> None:
    certificate, key = directory / f"{name}.pem", directory / f"{name}.key"
    (directory / "choria.cfg").write_text(
        f"identity = p.example.net\nplugin.security.provider = file\nplugin.security.file.certificate = {certificate}\n"
        f"plugin.security.file.key = {key}\nplugin.security.file.ca = {authority.ca}\n"
    )


@pytest.fixture
def good(tmp_path: Path) -> Path:
    """A directory with everything right."""
    helper = write_helper(tmp_path)
    (tmp_path / "p.yaml").write_text(f"helper: {helper}\ntoken: toktoktok\n")
    (tmp_path / "p.yaml").chmod(0o640)
    authority = Authority(tmp_path)
    _, key = authority.issue("p.example.net")
    key.chmod(0o600)
    x509_settings(tmp_path, authority)
    return tmp_path


def names(directory: Path) -> list[str]:
    return ["--config", str(directory / "p.yaml"), "--choria-config", str(directory / "choria.cfg")]


def test_nothing_to_complain_about(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = checked(capsys, *names(good), "--offline", "--strict")
    assert {one["level"] for one in found} == {"ok"}, [one for one in found if one["level"] != "ok"]
    assert code == EXIT_OK
    told = {one["subject"]: one["text"] for one in found}
    assert told["helper"].startswith("answered a sample in ")
    assert told["helper"].endswith(": provisioned")


def dated(authority: Authority, name: str, begins: float, ends: float) -> str:
    """A certificate of the same key with other dates (in days from now)."""
    now = datetime.datetime.now(datetime.UTC)
    key = x509.load_pem_x509_certificate((authority.directory / f"{name}.pem").read_bytes()).public_key()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    assert hasattr(key, "public_bytes")
    builder = x509.CertificateBuilder(authority.name, subject, key, x509.random_serial_number())
    builder = builder.not_valid_before(now + datetime.timedelta(begins)).not_valid_after(now + datetime.timedelta(ends))
    return cert_pem(builder.sign(authority.key, hashes.SHA256()))


@pytest.mark.parametrize(
    ("begins", "ends", "level", "said"),
    [
        (-30, -1, "fail", "expired on "),
        (-30, 10, "warn", "expires on "),
        (-30, 90, "ok", "is valid until "),
        (1, 90, "fail", "is not valid before "),
    ],
)
def test_dates_of_our_certificate(
    good: Path, capsys: pytest.CaptureFixture[str], begins: float, ends: float, level: str, said: str
) -> None:
    authority = Authority(good)
    authority.issue("p.example.net")
    (good / "p.example.net.key").chmod(0o600)
    (good / "p.example.net.pem").write_text(dated(authority, "p.example.net", begins, ends))
    code, found = checked(capsys, *names(good), *FILES_ONLY, "--strict")
    (about,) = [one for one in found if "plugin.security.file.certificate" in one["text"]]
    assert (about["level"], bool(about["do"])) == (level, level != "ok")
    assert said in about["text"]
    assert code == {"ok": EXIT_OK, "warn": EXIT_FINDING, "fail": EXIT_REFUSED}[level]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: (d / "p.example.net.key").write_text("no key"), "plugin.security.file"),
        (lambda d: (d / "p.example.net.key").unlink(), "can't be read: No such file or directory"),
        (lambda d: (d / "p.example.net.pem").write_text("no certificate"), "plugin.security.file"),
        (lambda d: (d / "ca.pem").write_text("no certificate"), "holds no PEM certificate"),
        (
            lambda d: Authority(d / "other").issue("p.example.net")[1].rename(d / "p.example.net.key"),
            "does not belong to",
        ),
    ],
)
def test_a_credential_that_cannot_be_used(
    good: Path, capsys: pytest.CaptureFixture[str], change: Any, said: str
) -> None:
    (good / "other").mkdir()
    change(good)
    code, found = checked(capsys, *names(good), "--no-helper")
    assert code == EXIT_REFUSED
    told = [one for one in found if one["level"] == "fail"]
    assert len(told) == 1
    assert said in told[0]["text"]
    assert (told[0]["subject"], bool(told[0]["do"])) == ("credential", True)
    assert [one["text"] for one in found if one["subject"] == "broker"] == [
        "not asked: our own credential can't be used"
    ]


def token_settings(directory: Path, **changes: object) -> None:
    """choria.cfg for a client token; with ``changes`` to its claims."""
    issuer = Issuer(directory)
    login = issuer.provisioner("provisioner_signer")
    if changes:
        claims = jwt.decode(login.token.read_text(), options={"verify_signature": False})
        login.token.write_text(jwt.encode(claims | changes, issuer.key, algorithm="EdDSA"))
    login.seed.chmod(0o600)
    (directory / "choria.cfg").write_text(
        "identity = p.example.net\nplugin.security.provider = choria\n"
        f"plugin.security.choria.token_file = {login.token}\nplugin.security.choria.seed_file = {login.seed}\n"
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"exp": int(time.time()) - 3600}, "the token expired"),
        ({"permissions": {"streams_admin": True}}, "lacks the permission `provisioner`"),
        ({"purpose": "choria_server"}, "the token is no client token: its purpose is 'choria_server'"),
        ({}, ""),
    ],
)
def test_our_client_token(
    good: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, object], said: str
) -> None:
    token_settings(good, **changes)
    code, found = checked(capsys, *names(good), *FILES_ONLY)
    assert [said in text for text in failures(found)] == ([True] if said else [])
    assert code == (EXIT_REFUSED if said else EXIT_OK)


def test_files_that_strangers_may_read_or_change(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (good / "p.yaml").chmod(0o644)
    (good / "p.example.net.key").chmod(0o604)
    (good / "helper").chmod(0o777)
    code, found = checked(capsys, *names(good), *FILES_ONLY)
    assert code == EXIT_REFUSED
    assert [(one["level"], one["do"]) for one in found if one["level"] != "ok"] == [
        ("warn", f"chmod o= {good / 'p.yaml'}"),
        ("fail", f"chmod o-w {good / 'helper'}"),
        ("warn", f"chmod o= {good / 'p.example.net.key'}"),
    ]


def test_what_the_servers_tokens_are_signed_with(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    issuer = Issuer(good)
    login = issuer.provisioner("provisioner_signer")
    claims = jwt.decode(login.token.read_text(), options={"verify_signature": False})
    soon = claims | {"exp": int(time.time()) + 5 * 86400}
    login.token.write_text(jwt.encode(soon, issuer.key, algorithm="EdDSA"))
    login.seed.chmod(0o600)
    with (good / "p.yaml").open("a") as file:
        file.write(f"features: {{ed25519: true}}\njwt_verify_cert: {issuer.public}\n")
        file.write(f"jwt_signing_key: {login.seed}\njwt_signing_token: {login.token}\n")
    code, found = checked(capsys, *names(good), *FILES_ONLY)
    told = [(one["subject"], one["level"]) for one in found if one["subject"].startswith("jwt_")]
    assert told == [
        ("jwt_verify_cert", "ok"),
        ("jwt_signing_key", "ok"),
        ("jwt_signing_token", "warn"),
        ("jwt_signing_token", "warn"),
    ]
    assert code == EXIT_OK
    login.token.write_text("no token")
    code, found = checked(capsys, *names(good), *FILES_ONLY)
    assert code == EXIT_REFUSED
    assert str(login.token) in failures(found)[0]


# --- the helper, the page, the broker -------------------------------------------------------------------------------


def test_a_helper_that_fails_on_the_sample(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_helper(good, "#!/bin/sh\necho 'no database' >&2\nexit 4\n")
    code, found = checked(capsys, *names(good), "--offline")
    assert code == EXIT_REFUSED
    (told,) = [one for one in found if one["level"] == "fail"]
    assert told["text"] == f"helper_failed: {good}/helper exited with code 4; last on stderr: no database"
    assert f"choria-provisioner helper --config {good}/p.yaml" in told["do"]


def _accept_and_close(listener: socket.socket) -> None:
    listener.accept()[0].close()


def test_the_page_of_another_program(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_accept_and_close, args=[listener], daemon=True).start()
        port = listener.getsockname()[1]
        with (good / "p.yaml").open("a") as file:
            file.write(f"monitor_port: {port}\n")
        code, found = checked(capsys, *names(good), *FILES_ONLY)
    assert failures(found) == [f"{port} is held by another program"]
    assert code == EXIT_REFUSED
    code, found = checked(capsys, *names(good), *FILES_ONLY)
    assert (code, [one["text"] for one in found if one["subject"] == "monitor_port"]) == (EXIT_OK, [f"{port} is free"])


async def test_the_broker_and_the_bucket(nats: NatsServer, tmp_path: Path) -> None:
    helper = write_helper(tmp_path)
    write_files(tmp_path, nats.port, helper=str(helper), leader_election=True)
    config = findings.configuration(tmp_path / "provisioner.yaml")[1]
    settings = findings.choria(tmp_path / "choria.cfg")[1]
    assert config is not None
    assert settings is not None
    found = await findings.broker(config, settings)
    assert [(one.subject, one.level) for one in found] == [("broker", "ok"), ("broker", "ok"), ("election", "fail")]
    assert "create_bucket: true" in found[2].do
    await nats.kill()


async def test_no_broker(nats: NatsServer, tmp_path: Path) -> None:
    helper = write_helper(tmp_path)
    write_files(tmp_path, nats.port, helper=str(helper))
    await nats.kill()
    argv = [sys.executable, "-m", "provisioner.cli.choria", "check", "--no-helper", "--wait", "1"]
    argv += ["--config", str(tmp_path / "provisioner.yaml"), "--choria-config", str(tmp_path / "choria.cfg")]
    run = await trio.run_process(argv, capture_stdout=True, capture_stderr=True, check=False)
    assert (run.returncode, run.stderr) == (EXIT_REFUSED, b"")
    (line,) = [line for line in run.stdout.decode().splitlines() if line.startswith("fail")]
    assert line.startswith("fail  broker: no connection to a broker within 1 s: ")
    assert "-> is it running" in line


# --- how it is printed ----------------------------------------------------------------------------------------------


def test_in_a_pipe_a_finding_is_one_line_and_on_a_terminal_it_is_wrapped() -> None:
    long = Finding("fail", "helper", "word " * 40 + "\x1b[31mend", "do " * 40)
    assert [line.count("\n") for line in check.lines([long], None)] == [0]
    on_terminal = "\n".join(check.lines([long], 80))
    assert max(map(len, on_terminal.splitlines())) <= 80
    assert "\x1b" not in on_terminal
    assert re.sub(r"\s+", " ", on_terminal).startswith("fail helper: word word")


# --- files of the Go program ----------------------------------------------------------------------------------------


def test_compare_knows_every_key_of_the_go_program() -> None:
    from provisioner.cli import comparison  # noqa: PLC0415
    from provisioner.config_keys import DEAD  # noqa: PLC0415
    from tests.test_docs import GENERATE  # noqa: PLC0415

    told = {difference.key for difference in comparison.DIFFERENCES}
    assert told | comparison.SAME == GENERATE.REFERENCE_KEYS
    assert not told & comparison.SAME
    assert not told & DEAD.keys()


def test_compare_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "go.yaml"
    file.write_text(
        "workers: -1\nhelper: /opt/h\ntoken: x\nloglevel: info\nlogfile: /var/log/p.log\nSite: x\nbroker_port: 4222\n"
        "sharing: true\nmonitor_prt: 1\nfeatures: {ed25519: false, upgrades: true}\nupgrades_optional: true\n"
    )
    code, found = checked(capsys, "--compare", str(file))
    assert code == EXIT_REFUSED
    assert (
        failures(found)
        == [
            f"{file}: workers: must be a whole number from 0 to 1000 (0: one for each CPU) (found -1)",
            f"{file}: logfile: must be a file in a directory that exists, or stdout, stderr or discard; x",
        ][:1]
    )
    assert {one["subject"] for one in found if one["level"] == "warn"} == {
        "Site",
        "broker_port",
        "sharing",
        "monitor_prt",
        "helper",
        "features.upgrades",
    }
    file.write_text("helper: /opt/h\ntoken: x\n")
    code, found = checked(capsys, "--compare", str(file))
    assert code == EXIT_OK
    assert {one["subject"] for one in found} == {"helper", "logfile", "loglevel"}
    code, _ = checked(capsys, "--compare", str(file), "--strict")
    assert code == EXIT_FINDING
    assert checked(capsys, "--compare", str(tmp_path / "no"))[0] == EXIT_REFUSED
