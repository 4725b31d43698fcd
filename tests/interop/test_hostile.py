"""What anybody with a provisioning.jwt can do on a real broker, and what not."""

import json
import time
from functools import partial

import pytest
import trio

from provisioner.choria import subjects
from provisioner.choria.rpc import decode_rpc_request, encode_rpc_reply
from provisioner.choria.v1 import V1
from provisioner.choria.v2 import V2
from provisioner.choria.wire import Reply, Request, Wire
from provisioner.leader import election, members
from tests.interop.choria import Broker
from tests.interop.conftest import StartDaemon, StartServer
from tests.interop.process import until
from tests.interop.raw import Connection, Refused

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1200)]


class Nobody:
    """A signer for one who only answers: replies of servers in provisioning mode are not signed."""

    credential = "none"

    def sign(self, message: bytes) -> str:
        raise NotImplementedError


def wire_of(broker: Broker) -> Wire:
    return V1("nobody", Nobody()) if broker.version == 1 else V2("nobody", Nobody())


def next_request(broker: Broker, connection: Connection, action: str) -> Request:
    """The next request for this action that the connection overhears."""
    while True:
        request = wire_of(broker).decode_request(connection.next().data)
        if request.payload.startswith(b"{") and decode_rpc_request(request.payload).action == action:
            return request


async def test_who_answers_for_another_ends_its_cycle(
    broker: Broker, start_server: StartServer, start_daemon: StartDaemon
) -> None:
    """The broker lets it; the server is not configured with anything, and the operator reads why."""
    server = start_server("victim.example.net")
    await until(server.waits_to_be_provisioned, "the server in provisioning mode")
    with Connection.unprovisioned(broker) as impostor:
        impostor.subscribe(subjects.node(server.identity))
        daemon = start_daemon()
        request = await trio.to_thread.run_sync(partial(next_request, broker, impostor, "jwt"))
        token = broker.provisioning_jwt(extensions={"site": "another"})
        forged = Reply(
            request=request.id,
            agent=request.agent,
            sender=server.identity,
            time_ns=time.time_ns(),
            payload=encode_rpc_reply("jwt", {"jwt": token, "ecdh_public": "09" + "00" * 31}),
        )
        impostor.publish(request.reply_to, wire_of(broker).encode_reply(forged, url=broker.url))
        await until(lambda: daemon.ended("answered_twice"), "the end of the cycle")
    assert not server.config.exists()
    assert daemon.ended("provisioned") == 0


async def test_what_another_server_can_overhear(
    broker: Broker, start_server: StartServer, start_daemon: StartDaemon
) -> None:
    """Configuration and token pass in clear (that is Choria's protocol), a private key does not."""
    server = start_server("overheard.example.net", do="key" if broker.version == 1 else "")
    await until(server.waits_to_be_provisioned, "the server in provisioning mode")
    with Connection.unprovisioned(broker) as spy:
        spy.subscribe(subjects.node(server.identity))
        daemon = start_daemon()
        request = await trio.to_thread.run_sync(partial(next_request, broker, spy, "configure"))
        await until(server.is_member, "the server connected as a member")
    data = decode_rpc_request(request.payload).data
    assert json.loads(data["config"]) == server.member_settings()
    if broker.version == 1:
        made = (daemon.state / f"{server.identity}.key").read_text().splitlines()
        assert "Proc-Type: 4,ENCRYPTED" in data["key"]
        assert not any(line in data["key"] for line in made[1:-1])
    else:
        assert data["server_jwt"] == (server.directory / "server.jwt").read_text()


@pytest.mark.parametrize("subject", [election.HANDOVER, members.SUBJECT])
def test_a_server_has_no_part_in_what_provisioners_say_to_each_other(broker: Broker, subject: str) -> None:
    with Connection.unprovisioned(broker) as server, pytest.raises(Refused, match="Permissions Violation"):
        server.publish(subject, b"{}")
    with Connection.unprovisioned(broker) as server, pytest.raises(Refused, match="Permissions Violation"):
        server.subscribe(subject)


@pytest.mark.parametrize("version", [2], ids=["v2"])
def test_neither_has_a_member_of_the_fleet(broker: Broker) -> None:
    """The account of the provisioned fleet is another one: what is said there is not heard here."""
    login = broker.issuer.provisioner("fleet_client")
    with Connection.member(broker, login) as client, pytest.raises(Refused, match="Permissions Violation"):
        client.subscribe(members.SUBJECT)
