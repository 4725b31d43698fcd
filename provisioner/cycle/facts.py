"""What one cycle has learned about its server so far: it only grows, and the helper sees all of it."""

from typing import Any

from attrs import define

from provisioner import strictjson


@define(slots=True)
class Facts:
    """The answers of one server.

    Attributes:
        identity: the server's.
        claims: the verified claims of its provisioning.jwt, as the helper sees them.
        ecdh_public: hex of its key for sealing; only the latest ``jwt`` call's works.
        ed25519: the ``gen25519`` answer, verified.
        csr: the ``gencsr`` answer, verified.
        inventory: the ``rpcutil#inventory`` answer.
    """

    identity: str
    claims: dict[str, Any] | None = None
    ecdh_public: str = ""
    ed25519: dict[str, str] | None = None
    csr: dict[str, str] | None = None
    inventory: dict[str, Any] | None = None

    @property
    def version(self) -> str:
        """The server's version, from its inventory."""
        return str((self.inventory or {}).get("version", ""))

    @property
    def inventory_text(self) -> str:
        """The inventory as the helper gets it: JSON text, keys sorted at every level (seed 2)."""
        return strictjson.dumps(self.inventory or {}, sort_keys=True)
