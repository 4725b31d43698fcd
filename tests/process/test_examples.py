"""The sample helpers and ``docs/helper.md``: everything that a reader may copy is run here."""

import datetime
import json
import os
import re
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from provisioner.command import check_command, split_command
from provisioner.errors import HelperBadReply
from provisioner.helper.contract import HelperReply, ServerPermissions, decode_reply, encode_input
from provisioner.helper.process import run_helper
from provisioner.helper.stream import StreamHelpers

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
PAGE = (ROOT / "docs" / "helper.md").read_text()
V1, V2 = (
    (ROOT / "tests" / "fixtures" / f"helper-input-{version}.jsonl").read_bytes().splitlines()
    for version in ("v1", "v2")
)
needs_jq = pytest.mark.skipif(shutil.which("jq") is None, reason="the shell sample needs jq, which is not installed")
PLAIN = ["helper.py", pytest.param("helper.sh", marks=needs_jq)]


@pytest.fixture(autouse=True)
def _our_python_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The samples ask env for python3; that of the system may have no cryptography, or an old one."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


async def ask(name: str, payload: bytes, *arguments: str) -> HelperReply:
    argv = [str(EXAMPLES / name), *arguments]
    assert check_command(argv) is None
    run = await run_helper(argv, payload, limit=50)
    assert run.stderr == ""
    return decode_reply(run.stdout)


def told(identity: str, *, facts: dict[str, Any] | None = None, csr: dict[str, str] | None = None) -> bytes:
    # A server may say anything of itself: the helper must not take its identity from there.
    inventory = json.dumps({"identity": "liar.example.net", "facts": facts or {}})
    return encode_input(identity=identity, csr=csr, ed25519_pubkey=None, inventory=inventory, jwt=None)


# --- helper.py and helper.sh ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("line", [*V1, *V2], ids=lambda line: json.loads(line)["identity"])
async def test_plain_on_recorded_inputs(name: str, line: bytes) -> None:
    reply = await ask(name, line)
    assert reply == HelperReply(
        configuration={
            "identity": json.loads(line)["identity"],
            "plugin.choria.middleware_hosts": "nats://broker1.example.net:4222,nats://broker2.example.net:4222",
            "plugin.choria.use_srv": "false",
            "plugin.choria.server.provision": "0",
            "logfile": "/var/log/choria.log",
            "loglevel": "warn",
            "registerinterval": "300",
        }
    )


@pytest.mark.parametrize("name", PLAIN)
async def test_plain_reads_the_facts_in_the_inventory(name: str) -> None:
    reply = await ask(name, told("a.lab.example.net", facts={"role": "test"}))
    assert reply.configuration["identity"] == "a.lab.example.net"
    assert reply.configuration["loglevel"] == "debug"
    assert reply.configuration["plugin.choria.middleware_hosts"] == "nats://broker.lab.example.net:4222"


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("identity", ["a.elsewhere.org", 'x.";rm -rf /;"', "a.b.example.net", "example.net"])
async def test_plain_defers_what_it_does_not_know(name: str, identity: str) -> None:
    reply = await ask(name, told(identity))
    assert reply.defer
    assert reply.msg.startswith("no broker is known for the domain ")
    assert not reply.configuration


# --- helper_ca.py ---------------------------------------------------------------------------------------------------

NOW = datetime.datetime.now(datetime.UTC)


class Authority:
    """A CA of its own in two files."""

    def __init__(self, directory: Path) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Test CA")])
        self.certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(self.key.public_key())
            .serial_number(1)
            .not_valid_before(NOW - datetime.timedelta(days=1))
            .not_valid_after(NOW + datetime.timedelta(days=100))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self.key, hashes.SHA256())
        )
        self.pem = self.certificate.public_bytes(serialization.Encoding.PEM).decode()
        (directory / "ca.pem").write_text(self.pem)
        (directory / "ca.key").write_bytes(
            self.key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        self.arguments = ["--ca", f"{directory}/ca.pem", "--key", f"{directory}/ca.key", "--domain", "example.net"]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


async def test_ca_signs_a_recorded_request(authority: Authority) -> None:
    line = json.loads(V1[0])
    reply = await ask("helper_ca.py", V1[0], *authority.arguments)
    certificate = x509.load_pem_x509_certificate(reply.certificate.encode())
    certificate.verify_directly_issued_by(authority.certificate)
    assert certificate.public_key() == x509.load_pem_x509_csr(line["csr"]["csr"].encode()).public_key()
    assert [name.value for name in certificate.subject] == ["key1.example.net"]
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["key1.example.net"]
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert certificate.not_valid_after_utc == authority.certificate.not_valid_after_utc
    assert reply.ca == authority.pem
    assert reply.ssldir == "/etc/choria/ssl"
    assert reply.configuration["plugin.security.file.certificate"] == "/etc/choria/ssl/certificate.pem"


async def test_ca_keeps_within_the_limits_of_the_agent(authority: Authority) -> None:
    reply = await ask("helper_ca.py", V1[0], *authority.arguments)
    assert len(json.dumps(dict(reply.configuration))) <= 2048
    assert len(reply.certificate) <= 10240
    assert reply.certificate.startswith("-----BEGIN CERTIFICATE-----")


def request(name: str, *, tampered: bool = False) -> dict[str, str]:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    der = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(subject)
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.DER)
    )
    if tampered:
        der = der[:-1] + bytes([der[-1] ^ 1])
    pem = x509.load_der_x509_csr(der).public_bytes(serialization.Encoding.PEM).decode()
    return {"csr": pem, "public_key": "", "ssldir": "/etc/choria/ssl"}


async def test_ca_refuses(authority: Authority) -> None:
    asked = {
        "there is no CSR": told("a.example.net"),
        "a.example.org is not in example.net": told("a.example.org", csr=request("a.example.org")),
        "the CSR is for ['b.example.net'], not for a.example.net": told("a.example.net", csr=request("b.example.net")),
        "the CSR is not signed by its own key": told("a.example.net", csr=request("a.example.net", tampered=True)),
    }
    for said, payload in asked.items():
        reply = await ask("helper_ca.py", payload, *authority.arguments)
        assert (reply.defer, reply.reason) == (True, "not-signed")
        assert reply.msg.startswith(said)
        assert not reply.certificate


# --- helper_issuer.py -------------------------------------------------------------------------------------------------

ISSUER = ["--issuer-public", "f86bd04c", "--ca", "/etc/choria/ca.pem"]


def with_role(line: bytes, role: str) -> bytes:
    server = json.loads(line)
    server["inventory"] = json.dumps({"facts": {"role": role}})
    return json.dumps(server).encode()


async def test_issuer_on_recorded_inputs() -> None:
    for line in V2:
        reply = await ask("helper_issuer.py", line, *ISSUER)
        assert not reply.defer
        assert reply.server_claims is not None
        assert reply.server_claims.collectives == ("choria", "web")
        assert reply.server_claims.permissions is None
        assert reply.configuration["plugin.security.choria.seed_file"] == "/etc/choria/server.seed"
        assert reply.configuration["plugin.security.issuer.choria.public"] == "f86bd04c"
        assert list(reply.opa_policies) == ["default.rego"]
        assert len(json.dumps(dict(reply.configuration))) <= 2048


async def test_issuer_gives_permissions_by_role() -> None:
    reply = await ask("helper_issuer.py", with_role(V2[0], "database"), *ISSUER)
    assert reply.server_claims is not None
    assert reply.server_claims.permissions == ServerPermissions(streams=True)


async def test_issuer_refuses() -> None:
    reply = await ask("helper_issuer.py", with_role(V2[0], "printer"), *ISSUER)
    assert (reply.defer, reply.reason, reply.defer_for) == (True, "unknown-role", 900.0)
    reply = await ask("helper_issuer.py", V1[0], *ISSUER)
    assert (reply.defer, reply.msg) == (True, "there is no ed25519 public key: is features.ed25519 on?")


# --- the page ---------------------------------------------------------------------------------------------------------

BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[str]:
    return [text for found, text in BLOCKS if found == language]


def test_every_block_of_the_page_is_known_to_a_test() -> None:
    found = Counter(language for language, _ in BLOCKS)
    assert found == {"console": 1, "json": 4, "python": 3, "sh": 1, "yaml": 2}


@pytest.mark.parametrize("language", ["python", pytest.param("sh", marks=needs_jq)])
async def test_helpers_on_the_page(tmp_path: Path, language: str) -> None:
    text = blocks(language)[0]
    path = tmp_path / "helper"
    path.write_text(text)
    path.chmod(0o755)
    run = await run_helper([str(path)], V2[0], limit=50)
    assert decode_reply(run.stdout) == HelperReply(configuration={"identity": "defer1.example.net", "loglevel": "warn"})


def test_json_on_the_page() -> None:
    example, *answers = map(json.loads, blocks("json"))
    assert list(example) == list(json.loads(V1[0]))
    assert json.loads(example["inventory"])["facts"] == {"dc": "lab", "role": "web"}
    for answer in answers:
        assert decode_reply(json.dumps(answer).encode()) != HelperReply()


def test_yaml_on_the_page() -> None:
    once, stream = map(yaml.safe_load, blocks("yaml"))
    assert split_command(once["helper"]) == ("/opt/prov/helper.py", "--site", "london")
    assert stream == {"helper": "/opt/prov/helper.py", "helper_mode": "stream", "helper_processes": 4}


async def test_the_helper_that_runs_on_on_the_page(tmp_path: Path) -> None:
    path = tmp_path / "helper"
    path.write_text(blocks("python")[1])
    path.chmod(0o755)
    async with StreamHelpers(1) as helpers:
        for line in V2:
            identity = json.loads(line)["identity"]
            run = await helpers([str(path)], line, identity=identity, limit=50)
            assert json.loads(run.stdout)["identity"] == identity
            assert decode_reply(run.stdout).configuration == {"identity": identity, "loglevel": "warn"}


async def test_the_function_on_the_page() -> None:
    names: dict[str, Any] = {}
    exec(blocks("python")[2], names)
    run = await names["run_helper"]((), V2[0], identity="")
    assert decode_reply(run.stdout).configuration == {"identity": "defer1.example.net", "loglevel": "warn"}


async def test_the_command_on_the_page() -> None:
    (block,) = blocks("console")
    by_tool, by_hand = block.splitlines()
    assert by_tool == "$ choria-provisioner helper --command docs/examples/helper.py"
    assert by_hand == "$ docs/examples/helper.py < docs/examples/input.json"
    assert (await ask("helper.py", (EXAMPLES / "input.json").read_bytes())).configuration


def rows(after: str) -> list[list[str]]:
    """The rows of the first table after a heading, without its head."""
    table = PAGE.split(after, 1)[1].split("\n\n|", 1)[1].split("\n\n", 1)[0]
    return [[cell.strip() for cell in row.strip("| ").split(" | ")] for row in table.splitlines()[2:]]


def test_refusals_on_the_page() -> None:
    found = rows("## What is refused")
    assert len(found) == 8
    for answer, said in found:
        with pytest.raises(HelperBadReply) as caught:
            decode_reply(answer.strip("`").encode())
        assert re.sub("[0-9a-f]{64}", "…", str(caught.value)) == said


def test_every_field_is_on_the_page() -> None:
    words = set(re.findall(r"`(\w+)`", PAGE))
    assert set(HelperReply.__annotations__) <= words
    assert set(json.loads(V1[0])) <= words
    assert set(ServerPermissions.__annotations__) <= words
