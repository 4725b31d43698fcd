"""The RPC actions a cycle uses: how long, how often, and what a usable answer holds (wire-protocol 5.6, 6, 12)."""

from provisioner.rpc import Action


def _provision(name: str, tries: int, *, shared: bool = False, **reply: type) -> Action:
    return Action("choria_provision", name, 22.0, tries, reply, shared=shared)


JWT = _provision("jwt", 3, shared=True, jwt=str, ecdh_public=str)
GEN25519 = _provision("gen25519", 5, public_key=str, directory=str, signature=str)
GENCSR = _provision("gencsr", 1, csr=str, public_key=str, ssldir=str)
CONFIGURE = _provision("configure", 5, message=str)
RESTART = _provision("restart", 3, shared=True, message=str)
SHUTDOWN = _provision("shutdown", 3, message=str)
RELEASE_UPDATE = _provision("release_update", 3, message=str)
INVENTORY = Action(
    "rpcutil",
    "inventory",
    4.0,
    5,
    {"version": str, "upgradable": bool, "facts": dict},
    {"upgradable": False},
    shared=True,
)

ACTIONS = (JWT, GEN25519, GENCSR, INVENTORY, CONFIGURE, RESTART, SHUTDOWN, RELEASE_UPDATE)
