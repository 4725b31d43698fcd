"""``choria-provisioner simulate``: a fleet of simulated servers on a broker, for trying a helper or a set-up."""

import argparse
import time
from pathlib import Path

import trio

from provisioner.bus.nats import Options, open_nats
from provisioner.errors import EXIT_OK, ConfigError, Fault
from provisioner.simulator.faults import Fault as ServerFault
from provisioner.simulator.faults import Kind, parse_fault
from provisioner.simulator.fleet import MadeFleet, make_servers, open_fleet, summary


def _faults(text: str) -> tuple[ServerFault, int]:
    name, _, number = text.partition("=")
    try:
        fault = parse_fault(name)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if number and not number.isdecimal():
        raise argparse.ArgumentTypeError(f"a number of servers is wanted after =, not {number!a}")
    return fault, int(number or 1)


def _number(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= 1_000_000:
        raise argparse.ArgumentTypeError("1 to 1000000 servers can be simulated")
    return int(text)


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    parser.description = (
        "Connects simulated Choria Servers in provisioning mode to a broker without TLS, announces them, and says what "
        f"became of them once all are gone or it is interrupted. Faults: {', '.join(Kind)}. "
        "`slow:configure=3` is three servers that are slow when configured."
    )
    parser.add_argument("--servers", type=_number, default=50, metavar="N", help="how many (default 50)")
    parser.add_argument("--protocol", type=int, choices=(1, 2), default=1, help="protocol version (default 1)")
    parser.add_argument("--servers-url", default="nats://127.0.0.1:4222", metavar="URL", help="the broker")
    parser.add_argument("--token", default="s3cret", help="their provisioning token, no secret here (default s3cret)")
    parser.add_argument("--domain", default="example.net", help="end of their names (default example.net)")
    parser.add_argument(
        "--fault", type=_faults, action="append", default=[], metavar="NAME[:ACTION]=N", help="N servers with a fault"
    )
    parser.add_argument(
        "--verification-key", type=Path, metavar="FILE", help="where to write the public key for jwt_verify_cert"
    )
    parser.add_argument("--no-events", action="store_true", help="don't announce them: discovery has to find them")


def main(flags: argparse.Namespace) -> int:
    """Runs the command.

    Returns:
        0 when it ended as asked.

    Raises:
        ConfigError: the key file can't be written.
    """
    made = make_servers(
        flags.servers,
        version=flags.protocol,
        token=flags.token,
        now=time.time(),
        faults=flags.fault,
        domain=flags.domain,
    )
    if flags.verification_key:
        try:
            flags.verification_key.write_text(made.issuer.verification_text)
        except OSError as error:
            file = str(flags.verification_key)
            raise ConfigError([Fault(file, "--verification-key", f"can't be written: {error.strerror}")]) from None
    try:
        trio.run(_simulate, made, flags.servers_url, not flags.no_events)
    except* KeyboardInterrupt:
        pass
    print(summary(made.servers))
    return EXIT_OK


async def _simulate(made: MadeFleet, url: str, announce: bool) -> None:
    async def resolve() -> list[str]:
        return [url]

    async with open_nats(resolve, Options(name="simulated-fleet")) as bus:
        print(f"Connecting to {url}", flush=True)
        await bus.wait_connected()
        async with open_fleet(bus, made.servers) as fleet:
            if announce:
                await fleet.announce()
            print(f"{len(fleet.servers)} simulated servers wait to be provisioned", flush=True)
            await fleet.wait_gone(len(fleet.servers))
