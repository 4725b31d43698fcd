"""``choria-provisioner simulate``: a fleet of simulated servers on a broker, for trying a helper or a set-up."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import trio

from provisioner.bus.nats import Options, open_nats
from provisioner.errors import EXIT_OK, EXIT_REFUSED
from provisioner.simulator.faults import Fault, Kind, parse_fault
from provisioner.simulator.fleet import MadeFleet, make_servers, open_fleet, summary


def _faults(text: str) -> tuple[Fault, int]:
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


def parser() -> argparse.ArgumentParser:
    """The flags."""
    made = argparse.ArgumentParser(
        prog="choria-provisioner simulate",
        description="Connects simulated Choria Servers in provisioning mode to a broker without TLS, announces them, "
        "and says what became of them once all are gone or it is interrupted.",
        epilog=f"Faults: {', '.join(Kind)}. `slow:configure=3` is three servers that are slow when configured.",
    )
    made.add_argument("--servers", type=_number, default=50, metavar="N", help="how many (default 50)")
    made.add_argument("--version", type=int, choices=(1, 2), default=1, help="protocol version (default 1)")
    made.add_argument("--servers-url", default="nats://127.0.0.1:4222", metavar="URL", help="the broker")
    made.add_argument("--token", default="s3cret", help="their provisioning token, no secret here (default s3cret)")
    made.add_argument("--domain", default="example.net", help="end of their names (default example.net)")
    made.add_argument(
        "--fault", type=_faults, action="append", default=[], metavar="NAME[:ACTION]=N", help="N servers with a fault"
    )
    made.add_argument(
        "--verification-key", type=Path, metavar="FILE", help="where to write the public key for jwt_verify_cert"
    )
    made.add_argument("--no-events", action="store_true", help="don't announce them: discovery has to find them")
    return made


def main(argv: Sequence[str]) -> int:
    """Runs the command.

    Args:
        argv: the flags, without the program's name.

    Returns:
        0 when it ended as asked, 2 when the key file can't be written. Bad flags end in ``SystemExit(2)``.
    """
    flags = parser().parse_args(argv)
    made = make_servers(
        flags.servers,
        version=flags.version,
        token=flags.token,
        now=time.time(),
        faults=flags.fault,
        domain=flags.domain,
    )
    if flags.verification_key:
        try:
            flags.verification_key.write_text(made.issuer.verification_text)
        except OSError as error:
            print(f"{flags.verification_key}: can't be written: {error.strerror}", file=sys.stderr)
            return EXIT_REFUSED
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
