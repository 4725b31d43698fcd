"""A bare NATS connection that logs in as anybody: a provisioner, a member of the fleet, a server that means harm.

Blocking and without reconnects; it knows only what the tests need of the protocol, and shares no code with the product.
"""

import base64
import json
import socket
import ssl
import time
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from attrs import frozen
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.interop.choria import PASSWORD, Broker
from tests.interop.credentials import Login

TIMEOUT = 30.0


@frozen
class Heard:
    """One message: subject and payload (headers, if any, are still in front of it)."""

    subject: str
    data: bytes


class Refused(Exception):
    """The broker answered ``-ERR``: the exception's text is what it said."""


class Connection:
    """Logged in when made.

    Args:
        broker: where to.
        login: fields of CONNECT: ``user``, ``pass``, ``auth_token``, ``jwt``, ``name``.
        certificate: a certificate and key signed by the broker's CA, or none.
        seed: signs the nonce of the broker's INFO, as JWT logins of normal members need.
    """

    def __init__(
        self,
        broker: Broker,
        login: dict[str, str],
        *,
        certificate: tuple[Path, Path] | None = None,
        seed: Path | None = None,
    ) -> None:
        self.socket = socket.create_connection(("127.0.0.1", broker.port), TIMEOUT)
        info = json.loads(_line(self.socket).removeprefix(b"INFO "))
        tls = ssl.create_default_context(cafile=str(broker.authority.ca))
        if certificate is not None:
            tls.load_cert_chain(*certificate)
        self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
        self.reader = self.socket.makefile("rb")
        self.heard: deque[Heard] = deque()
        self.next_id = 0
        fields: dict[str, Any] = {"verbose": False, "pedantic": False, "protocol": 1, "lang": "test", "version": "1"}
        if seed is not None:
            key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(seed.read_text()))
            fields["sig"] = _rawurl64(key.sign(info["nonce"].encode()))
        self._send(b"CONNECT " + json.dumps(fields | {"headers": True} | login).encode() + b"\r\n")
        try:
            self.flush()
        except Refused:
            self.close()
            raise

    @classmethod
    def provisioner(cls, broker: Broker, login: Login | None = None) -> Self:
        """As the provisioner: with its password and, by the kind of broker, its certificate or its token."""
        fields = {"user": "provisioner", "pass": PASSWORD, "name": "raw provisioner"}
        if broker.version == 1:
            return cls(broker, fields, certificate=broker.authority.issue("raw-provisioner.example.net"))
        login = login or broker.issuer.provisioner("raw_provisioner")
        return cls(broker, fields | {"auth_token": login.token.read_text()})

    @classmethod
    def member(cls, broker: Broker, login: Login) -> Self:
        """As a client of the provisioned fleet: with a client token (2), or with a certificate and its key (1)."""
        if broker.version == 1:
            return cls(broker, {"name": "raw member"}, certificate=(login.token, login.seed))
        token = login.token.read_text()
        return cls(broker, {"auth_token": token, "jwt": token, "name": "raw member"}, seed=login.seed)

    @classmethod
    def unprovisioned(cls, broker: Broker) -> Self:
        """As a server in provisioning mode, which any holder of a provisioning.jwt can be."""
        return cls(broker, {"auth_token": broker.provisioning_jwt(), "name": "unprovisioned"})

    def publish(self, subject: str, data: bytes) -> None:
        """Publishes, and waits until the broker has seen it."""
        self._send(b"PUB %s %d\r\n%s\r\n" % (subject.encode(), len(data), data))
        self.flush()

    def subscribe(self, subject: str) -> None:
        """Listens from now on; what is heard is for ``next``."""
        self.next_id += 1
        self._send(b"SUB %s %d\r\n" % (subject.encode(), self.next_id))
        self.flush()

    def next(self, timeout: float = TIMEOUT) -> Heard:
        """The next message, in order of arrival.

        Raises:
            TimeoutError: nothing came within ``timeout`` seconds.
        """
        deadline = time.monotonic() + timeout
        while not self.heard:
            self._read(max(deadline - time.monotonic(), 0.001))
        return self.heard.popleft()

    def all_for(self, seconds: float) -> list[Heard]:
        """All that is heard during ``seconds``, counted from now."""
        deadline, found = time.monotonic() + seconds, []
        while (left := deadline - time.monotonic()) > 0:
            try:
                found.append(self.next(left))
            except TimeoutError:
                break
        return found

    def flush(self) -> None:
        """Waits until the broker has seen all that was sent. What it delivers meanwhile is kept."""
        self._send(b"PING\r\n")
        while self._read(TIMEOUT) != b"PONG":
            pass

    def close(self) -> None:
        """Hangs up."""
        self.reader.close()
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _send(self, data: bytes) -> None:
        self.socket.settimeout(TIMEOUT)
        self.socket.sendall(data)

    def _read(self, timeout: float) -> bytes:
        self.socket.settimeout(timeout)
        line = self.reader.readline()
        if not line:
            raise Refused("the broker hung up")
        operation, _, rest = line.strip().partition(b" ")
        if operation == b"-ERR":
            raise Refused(rest.decode())
        if operation == b"PING":
            self._send(b"PONG\r\n")
        if operation in (b"MSG", b"HMSG"):
            self.socket.settimeout(TIMEOUT)
            subject, size = rest.split()[0], int(rest.split()[-1])
            self.heard.append(Heard(subject.decode(), self.reader.read(size + 2)[:-2]))
        return operation


def _line(connection: socket.socket) -> bytes:
    """One line, byte by byte: nothing of what follows (the TLS handshake) is taken."""
    line = b""
    while not line.endswith(b"\r\n"):
        byte = connection.recv(1)
        if not byte:
            raise Refused("the broker hung up")
        line += byte
    return line


def _rawurl64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
