"""Three hundred servers with ten kinds of trouble: status, metrics, audit trail and the fleet itself agree."""

import hashlib
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trio

from provisioner import strictjson
from provisioner.bus.nats import Options, open_nats
from provisioner.metrics import OUTCOMES
from provisioner.simulator.embedded import NatsServer
from provisioner.simulator.faults import Fault, Kind
from provisioner.simulator.fleet import MadeFleet, make_servers, open_fleet
from provisioner.simulator.site import Site
from tests.integration.daemon import Daemon, running_daemon, write_helper
from tests.integration.test_fleet import options, resolver

BY_SERVER = {
    Kind.LOCKED: "locked",
    Kind.WRONG_TOKEN: "refused",
    Kind.UNVERIFIABLE_JWT: "jwt_bad_signature",
    Kind.EXPIRED_JWT: "jwt_expired",
    Kind.TWO_ANSWERS: "answered_twice",
    Kind.BAD_BODY: "bad_reply",
}
BY_HELPER = {
    "later": "deferred",
    "old": "shut_down",
    "broken": "helper_failed",
    "empty": "bad_configuration",
}
EACH = 9
HELPER = """#!/bin/sh
read -r input
case "$input" in
*later*) echo '{"defer":true,"defer_for":"1h","msg":"not yet","reason":"maintenance"}' ;;
*old*) echo '{"shutdown":true}' ;;
*broken*) echo "no such role" >&2; exit 3 ;;
*empty*) echo '{"configuration":{}}' ;;
*) echo '{"configuration":{"plugin.choria.server.provision":"0","identity":"x"}}' ;;
esac
"""


def trouble(total: int) -> tuple[MadeFleet, dict[str, str]]:
    """The fleet, and how each server must end."""
    roles = [role for role in BY_HELPER for _ in range(EACH)]
    first = EACH * len(BY_SERVER)

    def facts(identity: str) -> dict[str, Any]:
        place = int(identity[1:5]) - 1 - first
        return {"role": roles[place] if 0 <= place < len(roles) else "web"}

    faults = [(Fault(kind), EACH) for kind in BY_SERVER]
    made = make_servers(
        total, version=1, token="s3cret", now=time.time(), faults=faults, site=Site(token="", jwt="", facts=facts)
    )
    words = [word for word in BY_SERVER.values() for _ in range(EACH)] + [BY_HELPER[role] for role in roles]
    words += ["provisioned"] * (total - len(words))
    return made, dict(zip((server.identity for server in made.servers), words, strict=True))


async def told(daemon: Daemon, *words: str) -> Any:
    """What ``choria-provisioner status`` prints, as a process of its own."""
    argv = [sys.executable, "-m", "provisioner.cli.choria", "status", "--url", f"http://127.0.0.1:{daemon.port}"]
    run = await trio.run_process([*argv, "--json", *words], capture_stdout=True)
    return json.loads(run.stdout)


@pytest.mark.timeout(180)
async def test_everybody_tells_the_same(nats: NatsServer, tmp_path: Path) -> None:
    made, wanted = trouble(300)
    audit = tmp_path / "audit.jsonl"
    write_helper(tmp_path, HELPER)
    async with open_nats(resolver(nats), Options(name="fleet")) as bus:
        await bus.wait_connected()
        async with (
            open_fleet(bus, made.servers),
            running_daemon(
                tmp_path, nats.port, workers=24, interval="30m", audit_log=str(audit), **options(made, tmp_path)
            ) as daemon,
        ):
            await daemon.until(lambda status: sum(status["outcomes"].values()) >= 300, seconds=120)
            status, metrics = await told(daemon), await daemon.metrics()
            entries = [json.loads(line) for line in audit.read_text().splitlines()]
            counts = dict(Counter(wanted.values()))
            # Word by word, four tellers.
            assert status["outcomes"] == counts
            assert {word: metrics[f"outcomes{{outcome={word}}}"] for word in OUTCOMES} == {
                word: counts.get(word, 0) for word in OUTCOMES
            }
            assert dict(Counter(entry["outcome"] for entry in entries)) == counts
            assert {entry["identity"]: entry["outcome"] for entry in entries} == wanted
            received = {server.identity: server.node.received for server in made.servers}
            assert {name for name, one in received.items() if one.done["restart"]} == names(wanted, "provisioned")
            assert {name for name, one in received.items() if one.done["shutdown"]} == names(wanted, "shut_down")
            assert {name for name, one in received.items() if one.asked["configure"]} == names(wanted, "provisioned")
            # What the sums are made of.
            assert metrics["provisioned"] == counts["provisioned"]
            errors = counts.keys() - {"provisioned", "deferred", "shut_down", "locked"}
            assert metrics["provision_errors"] == sum(counts[word] for word in errors)
            assert metrics["helper_errors"] == counts["helper_failed"]
            assert metrics["helper_shutdown_requests"] == counts["shut_down"]
            assert {one["identity"]: one["outcome"] for one in status["recent"]}.items() <= wanted.items()
            # One server's last word.
            for word in ("deferred", "helper_failed", "provisioned"):
                name = min(names(wanted, word))
                about = await told(daemon, name)
                assert about["last"]["outcome"] == word
                assert about["state"] == ("unknown" if word == "helper_failed" else "resting")
            entry_for = {entry["identity"]: entry for entry in entries}
            deferred = entry_for[min(names(wanted, "deferred"))]
            assert deferred["reason"] == "maintenance"
            assert deferred["configuration_sha256"] is None
            name = min(names(wanted, "provisioned"))
            config = strictjson.dumps(received[name].configurations[0], sort_keys=True)
            assert entry_for[name]["configuration_sha256"] == hashlib.sha256(config.encode()).hexdigest()
            assert len(entry_for[name]["request_ids"]) == 4
            assert entry_for[name]["provisioner"] == "prov.example.net"
            assert "s3cret" not in audit.read_text()
            assert await daemon.ends() == 0


def names(wanted: dict[str, str], word: str) -> set[str]:
    return {name for name, outcome in wanted.items() if outcome == word}
