"""Reads the recordings of real Choria (tests/fixtures): what was said on the wire, in order."""

import base64
import json
from functools import cache
from pathlib import Path
from typing import Any

from attrs import frozen

from provisioner.choria.security import CertificateSigner, SeedSigner, caller_of_token
from provisioner.choria.v1 import V1
from provisioner.choria.v2 import V2
from provisioner.secret import Secret

FIXTURES = Path(__file__).parent.parent / "fixtures"
NAMES = ("wire-v1-pki", "wire-v1-refused", "wire-v2-issuer")


@frozen
class Recorded:
    """One message: ``at`` in seconds from the first."""

    at: float
    subject: str
    data: bytes

    @property
    def is_event(self) -> bool:
        return self.subject.startswith("choria.lifecycle.")

    @property
    def is_choria(self) -> bool:
        return self.data.startswith(
            (b'{"protocol":"choria:transport:1"', b'{"protocol":"io.choria.protocol.v2.transport"')
        )

    @property
    def is_reply(self) -> bool:
        return self.subject.startswith("provisioning.reply.")

    @property
    def transport(self) -> dict[str, Any]:
        return json.loads(self.data)  # type: ignore[no-any-return]

    @property
    def secure(self) -> dict[str, Any]:
        return json.loads(base64.b64decode(self.transport["data"]))  # type: ignore[no-any-return]

    @property
    def url(self) -> str:
        headers = self.transport["headers"]
        return (headers.get("seen-by") or headers["trace"])[0][0]  # type: ignore[no-any-return]


@cache
def recording(name: str) -> tuple[Recorded, ...]:
    lines = (FIXTURES / f"{name}.jsonl").read_text().splitlines()
    return tuple(Recorded(line["at"], line["subject"], line["data"].encode()) for line in map(json.loads, lines))


def key(name: str) -> str:
    return (FIXTURES / "keys" / name).read_text()


@cache
def wire(name: str) -> V1 | V2:
    """The wire of the provisioner that was recorded, with its keys."""
    if name == "wire-v2-issuer":
        token = key("signer.jwt")
        return V2(caller_of_token(token), SeedSigner(token, Secret(key("signer.seed"))))
    signer = CertificateSigner(key("provisioner-v1.pem"), Secret(key("provisioner-v1.key")))
    return V1("choria=prov.example.net", signer)
