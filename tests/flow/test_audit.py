"""The audit trail of real cycles, and what a disk, a pipe and a rotation do to it."""

import hashlib
import json
import os
import resource
import signal
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from trio.testing import MockClock

from provisioner.audit import AuditTrail
from provisioner.bus.memory import MemoryBroker
from provisioner.choria.security import SeedSigner
from provisioner.choria.v2 import V2
from provisioner.config import Features
from provisioner.cycle.outcome import Outcome
from provisioner.errors import ConfigError
from provisioner.fleet.crew import CycleRun, Ended
from provisioner.secret import Secret
from provisioner.simulator.fleet import make_servers, open_fleet
from provisioner.testing import ScriptedHelper, ScriptedNode
from provisioner.trust.inspection import certificate_facts
from provisioner.trust.jws import unverified_claims
from tests.conformance.recordings import key
from tests.flow.conftest import Serve
from tests.flow.test_cut import Terms

FIXTURES = Path(__file__).parents[1] / "fixtures" / "keys"


def trail(path: Path) -> AuditTrail:
    return AuditTrail(path, provisioner="prov.example.net", site="testing", config_file="p.yaml")


def ended(identity: str = "n1.example.net", word: str = "stale") -> Ended:
    run = CycleRun(identity, 1, trio.current_time(), 1_700_000_000.5)
    return run.ended(Outcome(word, "it waited 130 s"))


def entries(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_a_certificate_is_named_by_its_serial(serve: Serve, broker: MemoryBroker, clock: MockClock) -> None:
    pem = (FIXTURES / "ca-v1.pem").read_text()
    answer = {"configuration": {"a": "b"}, "certificate": pem, "ca": pem, "ssldir": "/ssl"}
    async with ScriptedNode("n1.example.net").on(broker.connect()), serve(helper=ScriptedHelper(answer)) as running:
        assert await running.outcomes(1) == ["provisioned"]
    entry = AuditTrail(Path(os.devnull), provisioner="p", site="s").entry(running.ended[0])
    assert entry["certificate_serial"] == certificate_facts(pem).serial
    assert entry["configuration_sha256"] == hashlib.sha256(b'{"a":"b"}').hexdigest()
    assert len(entry["request_ids"]) == 3
    assert entry["key_sha256"] is entry["jti"] is entry["expires"] is None
    assert entry["started"] <= entry["ended"]
    assert (entry["identity"], entry["outcome"], entry["attempt"]) == ("n1.example.net", "provisioned", 1)
    assert (entry["provisioner"], entry["site"]) == ("p", "s")


async def test_an_issued_token_is_named_by_its_id_and_end(
    serve: Serve, broker: MemoryBroker, clock: MockClock, tmp_path: Path
) -> None:
    """The key, the token's id and its end; neither the token nor the seed nor the provisioning token."""
    made = make_servers(1, version=2, token="s3cret", now=time.time())
    signer = tmp_path / "signer.seed"
    signer.write_text("02" * 32)
    wire = V2("provisioner_signer", SeedSigner(key("signer.jwt"), Secret(key("signer.seed"))))
    changes: dict[str, Any] = {
        "features": Features(jwt=True, ed25519=True),
        "jwt_verify_cert": made.issuer.verification_text,
        "jwt_signing_key": signer,
    }
    async with open_fleet(broker.connect(), made.servers), serve(wire=wire, **changes) as running:
        assert await running.outcomes(1) == ["provisioned"]
    audit = trail(tmp_path / "audit")
    audit(running.ended[0])
    (entry,) = entries(tmp_path / "audit")
    files = made.servers[0].node.files
    public = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(files["server.seed"])).public_key().public_bytes_raw()
    claims = unverified_claims(files["server.jwt"])
    assert entry["key_sha256"] == hashlib.sha256(public).hexdigest()
    assert entry["jti"] == claims["jti"]
    assert entry["expires"] == datetime.fromtimestamp(claims["exp"], UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    assert entry["certificate_serial"] is None
    text = (tmp_path / "audit").read_text()
    for secret in (files["server.jwt"], files["server.seed"], "s3cret"):
        assert secret not in text


async def test_the_helpers_own_word_is_in_the_log(
    serve: Serve, broker: MemoryBroker, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    answer = {"defer": True, "msg": "not now", "reason": "maintenance"}
    async with ScriptedNode("n1.example.net").on(broker.connect()), serve(helper=ScriptedHelper(answer)) as running:
        assert await running.outcomes(1) == ["deferred"]
    (record,) = [one for one in caplog.records if one.getMessage() == "Deferred n1.example.net: not now"]
    assert vars(record)["reason"] == "maintenance"


async def test_a_lead_lost_in_the_middle_is_told_everywhere(
    serve: Serve, broker: MemoryBroker, clock: MockClock
) -> None:
    terms = Terms()
    async with (
        ScriptedNode("n1.example.net").on(broker.connect()),
        serve(helper=ScriptedHelper(seconds=5.0), lead=terms) as running,
    ):
        await trio.sleep(3)
        assert terms.term is not None
        terms.term.end()
        assert await running.outcomes(1) == ["lost_lead"]
        assert running.metric("outcomes", outcome="lost_lead") == 1
        assert running.service.history.totals == {"lost_lead": 1}
        assert running.ended[0].finished.step == "Asking the helper"
        assert len(running.ended[0].request_ids) == 1


async def test_a_full_disk_is_told_once_and_stops_nothing(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    audit = trail(Path("/dev/full"))
    for _ in range(3):
        audit(ended())
    assert audit.lost == 3
    assert [record.getMessage() for record in caplog.records] == [
        "The audit trail /dev/full can't be written, lines are lost: No space left on device"
    ]
    audit._path = tmp_path / "audit"  # room again, where the file is opened anew
    audit.reopen()
    audit(ended())
    assert caplog.records[-1].getMessage() == f"The audit trail {tmp_path}/audit is written again, 3 lines were lost"
    assert len(entries(tmp_path / "audit")) == 1


async def test_half_a_line_is_ended_before_the_next(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    audit = trail(path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))  # the kernel takes a hundred bytes, as a full disk may
        audit(ended("n1.example.net"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert audit.lost == 1
    audit(ended("n2.example.net"))
    half, whole = path.read_text().splitlines()
    assert len(half) == 100
    assert json.loads(whole)["identity"] == "n2.example.net"


async def test_a_rotated_file_is_opened_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, old = tmp_path / "d" / "audit", tmp_path / "d.old" / "audit"
    path.parent.mkdir()
    audit = trail(path)
    assert path.stat().st_mode & 0o777 & ~0o640 == 0
    audit(ended("n1.example.net"))
    path.parent.rename(old.parent)
    audit(ended("n2.example.net"))
    audit.reopen()  # its directory is gone: the old file is kept
    assert "can't be opened anew: No such file or directory" in caplog.text
    audit(ended("n3.example.net"))
    path.parent.mkdir()
    audit.reopen()
    audit(ended("n4.example.net"))
    assert [entry["identity"] for entry in entries(old)] == ["n1.example.net", "n2.example.net", "n3.example.net"]
    assert [entry["identity"] for entry in entries(path)] == ["n4.example.net"]


async def test_a_file_that_cannot_be_opened_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        trail(tmp_path)
    assert str(caught.value) == f"p.yaml: audit_log: can't be opened: Is a directory (found {tmp_path})"
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)  # nobody reads: opening it must not wait for somebody
    with pytest.raises(ConfigError, match="can't be opened: No such device or address"):
        trail(pipe)


async def test_nothing_that_others_wrote_is_in_it() -> None:
    run = CycleRun("n1.example.net", 1, trio.current_time(), 1.0)
    entry = trail(Path(os.devnull)).entry(run.ended(Outcome("refused", "words of the server", "Fetching JWT")))
    assert "words of the server" not in json.dumps(entry)
    assert entry["started"] == "1970-01-01T00:00:01.000Z"
