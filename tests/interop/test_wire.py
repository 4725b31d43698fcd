"""Our own wire code against real servers: what it says they understand, what they answer it understands."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioner.choria import subjects
from provisioner.choria.filter import Filter
from provisioner.choria.rpc import LOCKED, RPCReply, Status, decode_rpc_reply, encode_rpc_request
from provisioner.choria.security import CertificateSigner, SeedSigner, caller_of_token
from provisioner.choria.v1 import V1
from provisioner.choria.v2 import V2
from provisioner.choria.wire import DISCOVERY_PING, DISCOVERY_PONG, NANOSECOND, Reply, Request, Wire
from provisioner.secret import Secret
from tests.interop.choria import PASSWORD, TOKEN, Broker, Server, wait_until
from tests.interop.conftest import StartServer
from tests.interop.raw import Connection, Refused

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1200)]


class Client:
    """A provisioner of one identity, blocking: sends one request, returns the replies."""

    def __init__(self, broker: Broker, connection: Connection, identity: str = "wire.example.net") -> None:
        self.connection = connection
        self.broker = broker
        self.identity = identity
        settings = broker.client_settings(identity)
        self.wire: Wire
        if broker.version == 1:
            certificate = Path(str(settings["plugin.security.file.certificate"]))
            key = Secret(Path(str(settings["plugin.security.file.key"])).read_text())
            self.wire = V1(caller=f"choria={identity}", signer=CertificateSigner(certificate.read_text(), key))
        else:
            token = Path(str(settings["plugin.security.choria.token_file"])).read_text()
            seed = Secret(Path(str(settings["plugin.security.choria.seed_file"])).read_text())
            self.wire = V2(caller=caller_of_token(token), signer=SeedSigner(token, seed))

    def ask(self, subject: str, agent: str, payload: bytes, *, collective: str = subjects.COLLECTIVE) -> Reply:
        identifier = self.wire.new_request_id()
        reply_to = subjects.reply(self.wire.caller, identifier, collective)
        request = Request(
            id=identifier,
            agent=agent,
            collective=collective,
            sender=self.identity,
            caller=self.wire.caller,
            ttl=60,
            time_ns=time.time_ns(),
            filter=Filter(agent=("choria_provision",)),
            payload=payload,
            reply_to=reply_to,
        )
        self.connection.subscribe(reply_to)
        self.connection.publish(subject, self.wire.encode_request(request, url=self.broker.url))
        heard = self.connection.next()
        reply = self.wire.decode_reply(heard.data)
        assert heard.subject == reply_to
        assert (reply.request, reply.agent) == (identifier, agent)
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
def client(broker: Broker, connection: Connection) -> Client:
    return Client(broker, connection)


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
    assert answer.data["facts"] == {"dc": "lab", "role": "web"}
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
    answer = Client(broker, client.connection, "other.example.net").call(server, "choria_provision", "jwt", token=TOKEN)
    assert (answer.statuscode, answer.statusmsg) == (Status.ABORTED, LOCKED)


def test_a_configured_server_restarts_with_what_it_was_given(
    broker: Broker, client: Client, start_server: StartServer
) -> None:
    server = ready(start_server, "parsed.example.net", parse_only=True)
    configuration = {
        "identity": server.identity,
        "plugin.choria.server.provision": "0",
        "plugin.security.provider": "file",
        "plugin.security.file.certificate": str(broker.certificate),
        "plugin.security.file.key": str(broker.key),
        "plugin.security.file.ca": str(broker.authority.ca),
    }
    answer = client.call(server, "choria_provision", "configure", token=TOKEN, config=json.dumps(configuration))
    assert answer.data["message"] == f"Wrote {len(configuration) + 1} lines to {server.config}"
    answer = client.call(server, "choria_provision", "restart", token=TOKEN, splay=1)
    assert answer.data["message"] == "Restarting Choria Server after 2s"
    wait_until(lambda: server.process.code() is not None, "the restart")
    assert server.process.code() == 42
    assert server.settings() == configuration


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
