"""Each fault of a simulated server, and what becomes of its cycle: the table of docs/simulator.md, run."""

import re
import time
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from provisioner.bus.memory import MemoryBroker
from provisioner.config import Features
from provisioner.simulator.faults import Kind, parse_fault
from provisioner.simulator.fleet import make_servers, open_fleet
from provisioner.testing import ScriptedHelper
from tests.flow.conftest import Serve

PAGE = Path(__file__).parents[2] / "docs" / "simulator.md"
EXPECTED: dict[Kind, tuple[str, ...]] = {
    Kind.SILENT: ("no_reply",),
    Kind.SLOW: ("provisioned",),
    Kind.REFUSING: ("refused",),
    Kind.LOCKED: ("locked",),
    Kind.WRONG_TOKEN: ("refused",),
    Kind.UNVERIFIABLE_JWT: ("jwt_bad_signature",),
    Kind.EXPIRED_JWT: ("jwt_expired",),
    Kind.TWICE: ("provisioned",),
    Kind.TWO_ANSWERS: ("answered_twice",),
    Kind.FOR_ANOTHER: ("no_reply",),
    Kind.WRONG_ID: ("no_reply",),
    Kind.WRONG_VERSION: ("bad_reply",),
    Kind.GARBAGE: ("bad_reply",),
    Kind.BAD_BODY: ("bad_reply",),
    Kind.EMPTY_DATA: ("bad_reply",),
    Kind.WRONG_TYPES: ("bad_reply",),
    Kind.HUGE: ("provisioned",),
    Kind.BAD_CSR: ("csr_malformed",),
    Kind.BAD_KEY: ("challenge_failed",),
    Kind.LOST_REPLY: ("provisioned",),
    Kind.DYING: ("no_reply",),
    Kind.COMING_BACK: ("provisioned",),
    Kind.UPGRADE_FAILS: ("upgrade_failed",),
    Kind.UPGRADE_LOOP: ("upgrading", "upgrading", "upgrading", "upgrade_loop"),
}


def _features(kind: Kind) -> dict[str, Any]:
    match kind:
        case Kind.BAD_CSR:
            return {"features": Features(jwt=True, pki=True)}
        case Kind.BAD_KEY:
            return {"features": Features(jwt=True, ed25519=True)}
        case Kind.UPGRADE_FAILS | Kind.UPGRADE_LOOP:
            return {"features": Features(jwt=True, upgrades=True), "upgrades_repository": "http://repo.example.net"}
        case _:
            return {"features": Features(jwt=True)}


@pytest.mark.parametrize("kind", list(Kind))
async def test_fault(kind: Kind, serve: Serve, broker: MemoryBroker, clock: MockClock, tmp_path: Path) -> None:
    made = make_servers(1, version=1, token="s3cret", now=time.time(), faults=[(parse_fault(kind), 1)])
    key = tmp_path / "signer.pem"
    key.write_text(made.issuer.verification_text)
    signer = tmp_path / "signer.seed"
    signer.write_text("02" * 32)
    answer: dict[str, Any] = {"configuration": {"plugin.choria.server.provision": "0"}}
    if kind in {Kind.UPGRADE_FAILS, Kind.UPGRADE_LOOP}:
        answer["upgrade"] = "9.9.9"
    changes = _features(kind) | {"jwt_verify_cert": str(key), "jwt_signing_key": signer}
    (server,) = made.servers
    async with (
        open_fleet(broker.connect(), made.servers) as fleet,
        serve(helper=ScriptedHelper(answer), **changes) as running,
    ):
        await fleet.announce()
        ends = await running.outcomes(len(EXPECTED[kind]))
        if ends[0] == "provisioned":
            await fleet.wait_gone(1)
            await trio.sleep(300)
    assert tuple(ends[: len(EXPECTED[kind])]) == EXPECTED[kind]
    if EXPECTED[kind] == ("provisioned",):
        done = server.node.received.done
        assert (done["configure"], done["restart"]) == (2 if kind is Kind.LOST_REPLY else 1, 1)
        assert running.words() == ["provisioned"]
    else:
        assert not server.node.received.configurations


def test_the_page_says_the_same() -> None:
    rows = dict(re.findall(r"^\| `([a-z][a-z-]*)` \|.*\| (.*?) \|$", PAGE.read_text(), re.MULTILINE))
    assert {kind: tuple(re.findall(r"[a-z_0-9]+", row.partition(",")[0]))[:1] for kind, row in rows.items()} == {
        kind.value: words[:1] for kind, words in EXPECTED.items()
    }
