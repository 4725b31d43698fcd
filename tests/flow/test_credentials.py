"""A simulated server is given its credentials, both ways: a certificate with its key, or a token of its own key."""

import json
import time
from pathlib import Path
from typing import Any

from trio.testing import MockClock

from provisioner.bus.memory import MemoryBroker
from provisioner.choria.security import SeedSigner
from provisioner.choria.v2 import V2
from provisioner.config import Features
from provisioner.secret import Secret
from provisioner.simulator.fleet import make_servers, open_fleet
from provisioner.testing import ScriptedHelper
from provisioner.trust.keys import ed25519_verifier
from provisioner.trust.request import DenyList, verify_request
from provisioner.trust.server_token import verify_server_token
from tests.conformance.recordings import key
from tests.flow.conftest import Serve

PUBLIC = "8139770ea87d175f56a35466c34c7ecccb8d8a91b4ee37a25df60f5b8fc9b394"
"""The public key of the seed 02 02 ..."""
OFF = {"plugin.choria.server.provision": "0"}


async def test_version_1_certificate_and_private_key(
    serve: Serve, broker: MemoryBroker, clock: MockClock, tmp_path: Path
) -> None:
    made = make_servers(1, version=1, token="s3cret", now=time.time())
    (server,) = made.servers
    signer = tmp_path / "signer.pem"
    signer.write_text(made.issuer.verification_text)
    private = key("jwt-signer-rsa.key")
    helper = ScriptedHelper(
        {
            "configuration": OFF,
            "certificate": "-----BEGIN CERTIFICATE-----\nx",
            "ca": "-----BEGIN CERTIFICATE-----\ny",
            "key": private,
            "action_policies": {"rpcutil.policy": "policy default allow"},
            "opa_policies": {"main.rego": "package io.choria"},
        }
    )
    changes: dict[str, Any] = {"features": Features(jwt=True, pki=True), "jwt_verify_cert": str(signer)}
    async with open_fleet(broker.connect(), made.servers) as fleet, serve(helper=helper, **changes) as running:
        assert await running.outcomes(1) == ["provisioned"]
        await fleet.wait_gone(1)
    asked = helper.inputs[0]
    verify_request(asked["csr"]["csr"], server.identity, DenyList([]), public_key=asked["csr"]["public_key"])
    assert asked["csr"]["ssldir"] == "/etc/choria/ssl"
    assert asked["jwt"]["cht"] == "s3cret"
    assert json.loads(asked["inventory"])["facts"]["fqdn"] == server.identity
    files = server.node.files
    assert files["ssl/private.pem"].split() == private.split()
    assert files["ssl/certificate.pem"] == "-----BEGIN CERTIFICATE-----\nx"
    assert files["policies/rpcutil.policy"] == "policy default allow"
    assert files["policies/rego/main.rego"] == "package io.choria"
    assert server.node.received.configurations == [OFF]
    assert server.node.received.done == {"jwt": 1, "inventory": 1, "gencsr": 1, "configure": 1, "restart": 1}


async def test_version_2_token_for_the_servers_own_key(
    serve: Serve, broker: MemoryBroker, clock: MockClock, tmp_path: Path
) -> None:
    made = make_servers(2, version=2, token="s3cret", now=time.time())
    signer = tmp_path / "signer.seed"
    signer.write_text("02" * 32)
    issuer = made.issuer.verification_text
    wire = V2("provisioner_signer", SeedSigner(key("signer.jwt"), Secret(key("signer.seed"))))
    changes: dict[str, Any] = {
        "features": Features(jwt=True, ed25519=True),
        "jwt_verify_cert": issuer,
        "jwt_signing_key": signer,
    }
    helper = ScriptedHelper({"configuration": OFF | {"plugin.security.provider": "choria"}})
    async with (
        open_fleet(broker.connect(), made.servers) as fleet,
        serve(helper=helper, wire=wire, **changes) as running,
    ):
        assert await running.outcomes(2) == ["provisioned"] * 2
        await fleet.wait_gone(2)
    seeds = set()
    for server in made.servers:
        token, seed = server.node.files["server.jwt"], server.node.files["server.seed"]
        claims = verify_server_token(token, ed25519_verifier(PUBLIC), now=time.time())
        assert (claims["identity"], claims["collectives"]) == (server.identity, ["choria"])
        SeedSigner(token, Secret(seed))  # refuses a seed that isn't the token's
        assert server.node.files["server.cfg"].startswith("# configuration file written in request ")
        assert " from provisioner_signer (prov.example.net)\n" in server.node.files["server.cfg"]
        seeds.add(seed)
    assert len(seeds) == 2
