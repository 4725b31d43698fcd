"""Our own wire code against real servers: what it says they understand, what they answer it understands."""

import base64
import json
import time
from collections.abc import Iterator

import pytest
from attrs import frozen

from provisioner.choria import subjects
from provisioner.choria.filter import Filter
from provisioner.choria.rpc import LOCKED, RPCReply, Status, decode_rpc_reply, encode_rpc_request
from provisioner.choria.security import CertificateSigner, SeedSigner, caller_of_token
from provisioner.choria.v1 import V1
from provisioner.choria.v2 import V2
from provisioner.choria.wire import DISCOVERY_PING, DISCOVERY_PONG, NANOSECOND, Reply, Request, Wire
from provisioner.secret import Secret
from tests.asking import encode_request
from tests.interop.choria import PASSWORD, RESTARTED_AS_MEMBER, TOKEN, Broker, Server
from tests.interop.conftest import StartServer
from tests.interop.credentials import Login
from tests.interop.process import wait_until
from tests.interop.raw import Connection, Refused

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1200)]


class Client:
    """A requester of one identity, blocking: sends one request, returns the reply."""

    def __init__(self, connection: Connection, wire: Wire, identity: str = "wire.example.net") -> None:
        self.connection = connection
        self.wire = wire
        self.identity = identity

    def send(self, wire: Wire, subject: str, agent: str, payload: bytes) -> Request:
        collective, identifier = subject.partition(".")[0], wire.new_request_id()
        request = Request(
            id=identifier,
            agent=agent,
            collective=collective,
            sender=self.identity,
            caller=wire.caller,
            ttl=60,
            time_ns=time.time_ns(),
            filter=Filter(agent=(agent,)),
            payload=payload,
            reply_to=subjects.reply(wire.caller, identifier, collective),
        )
        self.connection.subscribe(request.reply_to)
        self.connection.publish(subject, encode_request(wire, request, url="nats://localhost:4222"))
        return request

    def ask(self, subject: str, agent: str, payload: bytes) -> Reply:
        request = self.send(self.wire, subject, agent, payload)
        heard = self.connection.next()
        assert heard.subject == request.reply_to
        reply = self.wire.decode_reply(heard.data)
        assert (reply.request, reply.agent) == (request.id, agent)
        assert self.wire.reply_sender(heard.data) == reply.sender
        assert abs(reply.time_ns - time.time_ns()) < 60 * NANOSECOND
        return reply

    def call(self, server: Server, agent: str, action: str, **data: object) -> RPCReply:
        payload = encode_rpc_request(agent, action, data)
        reply = self.ask(subjects.node(server.identity), agent, payload)
        assert reply.sender == server.identity
        answer = decode_rpc_reply(reply.payload)
        assert answer.action == action
        return answer


@pytest.fixture
def connection(broker: Broker) -> Iterator[Connection]:
    with Connection.provisioner(broker) as connection:
        yield connection


@pytest.fixture
def login(broker: Broker) -> Login:
    """A client of the fleet, by a name that Choria lets clients have."""
    if broker.version == 1:
        return Login(*broker.authority.issue("wire.mcollective"))
    return broker.issuer.provisioner("wire_provisioner")


@pytest.fixture
def wire(broker: Broker, login: Login) -> Wire:
    token, secret = login.token.read_text(), Secret(login.seed.read_text())
    if broker.version == 1:
        return V1(caller="choria=wire.mcollective", signer=CertificateSigner(token, secret))
    return V2(caller=caller_of_token(token), signer=SeedSigner(token, secret))


@pytest.fixture
def client(connection: Connection, wire: Wire) -> Client:
    return Client(connection, wire)


def ready(start_server: StartServer, identity: str, **claims: object) -> Server:
    server = start_server(identity, **claims)
    wait_until(server.waits_to_be_provisioned, f"{identity} in provisioning mode")
    return server


def test_a_server_answers_discovery(client: Client, start_server: StartServer) -> None:
    server = ready(start_server, "ping.example.net")
    reply = client.ask(subjects.broadcast("discovery"), "discovery", DISCOVERY_PING)
    assert reply.sender == server.identity
    assert reply.payload == DISCOVERY_PONG


def test_a_server_tells_its_inventory(client: Client, start_server: StartServer) -> None:
    server = ready(start_server, "inventory.example.net")
    answer = client.call(server, "rpcutil", "inventory")
    assert answer.statuscode == Status.OK
    assert answer.data["agents"] == ["choria_provision", "choria_util", "discovery", "rpcutil"]
    assert answer.data["collectives"] == ["provisioning"]
    assert answer.data["facts"] == json.loads((server.directory / "facts.json").read_text())
    assert answer.data["upgradable"] is False


def test_a_server_gives_its_token(client: Client, start_server: StartServer) -> None:
    server = ready(start_server, "token.example.net")
    answer = client.call(server, "choria_provision", "jwt", token=TOKEN)
    assert answer.statuscode == Status.OK
    assert answer.data["jwt"] == (server.directory / "provisioning.jwt").read_text()
    assert len(bytes.fromhex(answer.data["ecdh_public"])) == 32


def test_a_wrong_token_is_refused(client: Client, start_server: StartServer) -> None:
    server = ready(start_server, "wrong.example.net")
    answer = client.call(server, "choria_provision", "jwt", token="not the token")
    assert answer.statuscode == Status.ABORTED
    assert answer.statusmsg == "Incorrect provision token supplied"


def test_a_second_provisioner_is_locked_out(broker: Broker, client: Client, start_server: StartServer) -> None:
    server = ready(start_server, "locked.example.net")
    assert client.call(server, "choria_provision", "jwt", token=TOKEN).statuscode == Status.OK
    answer = Client(client.connection, client.wire, "other.example.net").call(
        server, "choria_provision", "jwt", token=TOKEN
    )
    assert (answer.statuscode, answer.statusmsg) == (Status.ABORTED, LOCKED)


@frozen
class Forger:
    """Shows a valid credential, and signs with nothing: 64 zero bytes."""

    credential: str

    def sign(self, message: bytes) -> str:
        return base64.b64encode(bytes(64)).decode()


def provision(client: Client, server: Server) -> None:
    """Makes a real server a member, by the wire alone."""
    inputs: dict[str, object] = {"config": json.dumps(server.member_settings())}
    if server.broker.version == 1:
        answer = client.call(server, "choria_provision", "gencsr", token=TOKEN, cn=server.identity)
        inputs |= {
            "certificate": server.broker.authority.sign_request(server.identity, answer.data["csr"]),
            "ca": server.broker.authority.ca.read_text(),
            "ssldir": answer.data["ssldir"],
        }
    else:
        answer = client.call(server, "choria_provision", "gen25519", token=TOKEN, nonce="0123456789abcdef" * 2)
        inputs["server_jwt"] = server.broker.issuer.server_token(server.identity, answer.data["public_key"])
    answer = client.call(server, "choria_provision", "configure", token=TOKEN, **inputs)
    assert answer.statusmsg == "OK"
    assert answer.data["message"] == f"Wrote {len(server.member_settings()) + 1} lines to {server.config}"
    answer = client.call(server, "choria_provision", "restart", token=TOKEN, splay=1)
    assert answer.data["message"] == "Restarting Choria Server after 2s"


def test_a_configured_server_restarts_with_what_it_was_given(client: Client, start_server: StartServer) -> None:
    server = ready(start_server, "parsed.example.net", parse_only=True)
    provision(client, server)
    wait_until(lambda: server.process.code() is not None, "the restart")
    assert server.process.code() == RESTARTED_AS_MEMBER
    assert server.settings() == server.member_settings()


def test_a_member_believes_our_signature_and_no_other(
    broker: Broker, client: Client, login: Login, start_server: StartServer
) -> None:
    """Servers in provisioning mode verify no signature; a member of the fleet does."""
    server = ready(start_server, "member.example.net")
    provision(client, server)
    wait_until(server.is_member, "the server connected as a member")
    collective = "mcollective" if broker.version == 1 else "choria"
    with Connection.member(broker, login) as connection:
        member = Client(connection, client.wire)
        forged = (V1 if broker.version == 1 else V2)(client.wire.caller, Forger(login.token.read_text()))
        member.send(forged, subjects.node(server.identity, collective), "discovery", DISCOVERY_PING)
        reply = member.ask(subjects.node(server.identity, collective), "discovery", DISCOVERY_PING)
    assert (reply.sender, reply.payload) == (server.identity, DISCOVERY_PONG)


def test_the_broker_of_an_issuer_wants_password_and_token_at_once(brokers: dict[int, Broker]) -> None:
    broker = brokers[2]
    token = broker.issuer.provisioner("p").token.read_text()
    without = broker.issuer.provisioner("q", may_provision=False).token.read_text()
    for login in (
        {"user": "provisioner", "pass": "wrong", "auth_token": token},
        {"user": "provisioner", "pass": "", "auth_token": token},
        {"user": "provisioner", "pass": PASSWORD},
        {"user": "provisioner", "pass": PASSWORD, "auth_token": without},
    ):
        with pytest.raises(Refused, match="Authorization Violation"):
            Connection(broker, login)
