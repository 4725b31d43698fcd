#!/usr/bin/env python3
"""A helper for servers that need a configuration and no credentials. Copy it, then change SITE and settings().

It needs Python 3.8 and nothing else. It reads one server's description from standard input and writes one answer to
standard output. What it doesn't know it defers: the server keeps waiting and is asked about again, and the message is
in the provisioner's log.
"""

import json
import sys

SITE = {
    # domain of the servers: the brokers that they shall use
    "example.net": "nats://broker1.example.net:4222,nats://broker2.example.net:4222",
    "lab.example.net": "nats://broker.lab.example.net:4222",
}


def settings(identity, facts, brokers):
    """The server's configuration file. All values are strings."""
    return {
        "identity": identity,
        "plugin.choria.middleware_hosts": brokers,
        "plugin.choria.use_srv": "false",
        "plugin.choria.server.provision": "0",
        "logfile": "/var/log/choria.log",
        "loglevel": "debug" if facts.get("role") == "test" else "warn",
        "registerinterval": "300",
    }


def decide(server):
    """The answer about one server."""
    # The identity to use is this one, not what the server says of itself in its inventory.
    identity = server["identity"]
    # The inventory is a string that contains JSON: it is decoded a second time.
    inventory = json.loads(server["inventory"])

    domain = identity.partition(".")[2]
    if domain not in SITE:
        return {"defer": True, "msg": f"no broker is known for the domain {domain!r}"}
    return {"configuration": settings(identity, inventory.get("facts", {}), SITE[domain])}


if __name__ == "__main__":
    json.dump(decide(json.load(sys.stdin)), sys.stdout)
