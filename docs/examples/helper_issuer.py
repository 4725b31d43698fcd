#!/usr/bin/env python3
"""A helper for an Organization Issuer: servers get a signed token. For `features.ed25519`.

It needs Python 3.8 and nothing else. Use it as

    helper: /opt/prov/helper_issuer.py --issuer-public f86bd04c...8295 --ca /etc/choria/ca.pem

The provisioner makes and signs the token with its own key; the helper says what the token may allow.
"""

import argparse
import json
import sys

ROLES = {
    # fact `role`: what such a server may do beyond the ordinary
    "web": {},
    "database": {"streams": True},
    "broker": {"streams": True, "governor": True, "service_host": True},
}

POLICY = """package io.choria.mcorpc.authpolicy

default allow = false

allow {
    input.action == "ping"
}
"""


def decide(server, options):
    """The answer about one server."""
    identity = server["identity"]
    key = server["ed25519_pubkey"]
    if key is None:
        return {"defer": True, "msg": "there is no ed25519 public key: is features.ed25519 on?"}
    # The inventory is a string that contains JSON: it is decoded a second time.
    facts = json.loads(server["inventory"]).get("facts", {})
    role = facts.get("role")
    if role not in ROLES:
        # It may be that the inventory system hasn't heard of it yet: not again before 15 minutes.
        return {"defer": True, "defer_for": "15m", "reason": "unknown-role", "msg": f"the role {role!r} is unknown"}

    directory = key["directory"]
    claims = {"collectives": ["choria", role], "ou": "choria"}
    if ROLES[role]:
        claims["permissions"] = ROLES[role]
    return {
        "server_claims": claims,
        "opa_policies": {"default.rego": POLICY},
        "configuration": {
            "identity": identity,
            "collectives": ",".join(claims["collectives"]),
            "plugin.choria.middleware_hosts": options.brokers,
            "plugin.choria.use_srv": "false",
            "plugin.choria.server.provision": "0",
            "plugin.security.provider": "choria",
            "plugin.security.choria.token_file": f"{directory}/server.jwt",
            "plugin.security.choria.seed_file": f"{directory}/server.seed",
            "plugin.security.choria.ca": options.ca,
            "plugin.security.issuer.names": "choria",
            "plugin.security.issuer.choria.public": options.issuer_public,
            "rpcauthorization": "1",
            "rpcauthprovider": "rego_policy",
        },
    }


def main():
    """Reads one server, writes one answer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--issuer-public", required=True, help="the organization's public key, hex")
    parser.add_argument("--ca", required=True, help="on the servers: the CA of the brokers' TLS certificates")
    parser.add_argument("--brokers", default="nats://broker.example.net:4222", help="what the servers connect to")
    json.dump(decide(json.load(sys.stdin), parser.parse_args()), sys.stdout)


if __name__ == "__main__":
    main()
