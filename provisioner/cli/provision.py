"""``choria-provisioner provision``: one or some servers now, in the foreground; or only what would be done.

It speaks as its own sender, ``<identity>.cli``: a server's lock tells it and a running daemon apart.
"""

import argparse
import logging
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import time
from typing import Self

import trio
from attrs import evolve, frozen
from prometheus_client import CollectorRegistry

from provisioner.audit import AuditTrail
from provisioner.choria.ids import identity_problem
from provisioner.choria.settings import ChoriaSettings
from provisioner.cli.answer import answer_lines, complaint_lines
from provisioner.cli.choria_files import load_choria_settings
from provisioner.cli.connection import add_wait, connected
from provisioner.cli.helper_mode import helper_runner
from provisioner.cli.screen import printing, terminal_width, wrapped
from provisioner.cli.signals import handle_signals
from provisioner.config import Config, load_config
from provisioner.connect import wire_for
from provisioner.cycle.means import load_means
from provisioner.cycle.outcome import KINDS, Outcome
from provisioner.cycle.rehearsal import rehearse
from provisioner.cycle.steps import Cycle, Means
from provisioner.errors import EXIT_FINDING, EXIT_OK, EXIT_UNREACHABLE, ConfigError, Fault
from provisioner.fleet.crew import CycleRun, run_cycle
from provisioner.fleet.history import Finished, History
from provisioner.metrics import Metrics
from provisioner.printable import escaped
from provisioner.rpc import Caller, open_caller
from provisioner.secret import MASK, Secret

STEP_COLUMNS = 30
UNREACHED = frozenset({"locked", "no_reply", "connection_lost"})
"""Ends in which a server was not reached, or is busy."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    parser.description = (
        "Provisions these servers now, one after the other, and shows each step with its time. A daemon may run beside "
        "it: a server that either has begun with is locked for the other for two minutes."
    )
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="the provisioner's YAML file")
    parser.add_argument("--choria-config", type=Path, metavar="FILE", help="the Choria client configuration, as in run")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="change nothing on the server: fetch its inventory, ask the helper, print what would be sent",
    )
    parser.add_argument(
        "--with-jwt",
        action="store_true",
        help="with --dry-run: fetch the server's token too. The price: the server is locked for two minutes and "
        "makes a new ECDH key, so that a cycle of a daemon with it fails",
    )
    add_wait(parser)
    parser.add_argument("identity", nargs="+", metavar="IDENTITY", help="a server's identity")


def main(arguments: argparse.Namespace) -> int:
    """Runs the command.

    Returns:
        0 when every server ended well; 3 when each that did not was locked or gave no answer; else 1.

    Raises:
        ConfigError: a file, or a flag, can't be used.
        ConnectionLost: there is no broker.
    """
    config = load_config(arguments.config)
    faults = [
        Fault("IDENTITY", "", f"is no server's identity: {problem}", escaped(name, 100))
        for name in arguments.identity
        if (problem := identity_problem(name))
    ]
    if arguments.with_jwt and not arguments.dry_run:
        faults.append(Fault("--with-jwt", "", "goes with --dry-run only; without it the token is fetched anyway"))
    if arguments.with_jwt and not config.features.jwt:
        faults.append(Fault(str(config.path), "features.jwt", "must be on for --with-jwt"))
    if faults:
        raise ConfigError(faults)
    settings = load_choria_settings(arguments.choria_config)
    with printing(), _Screen(_secrets(config, settings), debug=arguments.debug) as screen:
        work = _Work(
            config, settings, screen, tuple(dict.fromkeys(arguments.identity)), _dry(arguments), arguments.wait
        )
        return trio.run(work.run)


def _dry(arguments: argparse.Namespace) -> str:
    return ("jwt" if arguments.with_jwt else "inventory") if arguments.dry_run else ""


def _secrets(config: Config, settings: ChoriaSettings) -> list[Secret]:
    return [config.token, config.broker_provisioning_password, settings.nats_pass]


class _Screen(logging.Handler):
    """Steps as they begin, their times as they end; log lines of level warning between them."""

    def __init__(self, secrets: Sequence[Secret], *, debug: bool) -> None:
        super().__init__(logging.DEBUG if debug else logging.WARNING)
        self._secrets = [secret.reveal() for secret in secrets if secret]
        self._since: float | None = None
        self._open = False  # the cursor stands behind a step's name

    def __enter__(self) -> Self:
        logger = logging.getLogger("provisioner")
        self._before = logger.level, logger.propagate
        logger.setLevel(self.level)
        logger.propagate = False
        logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logger = logging.getLogger("provisioner")
        logger.removeHandler(self)
        logger.level, logger.propagate = self._before

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        if self._open:
            print()
            self._open = False
        print(f"    {escaped(text)}", flush=True)

    def step(self, name: str) -> None:
        """A step begins, and the one before it has ended."""
        self.end_step()
        self._since = trio.current_time()
        self._open = True
        print(f"  {name:<{STEP_COLUMNS}}", end="", flush=True)

    def end_step(self) -> None:
        """The step has ended."""
        if self._since is not None:
            indent = 0 if self._open else STEP_COLUMNS + 2
            print(f"{'':{indent}}{trio.current_time() - self._since:7.3f} s", flush=True)
            self._since, self._open = None, False


@frozen
class _Work:
    config: Config
    settings: ChoriaSettings
    screen: _Screen
    identities: tuple[str, ...]
    dry: str
    wait: float

    async def run(self) -> int:
        config, sender = self.config, f"{self.settings.identity}.cli"
        wire = wire_for(config, self.settings)
        metrics = Metrics(CollectorRegistry(), config.site)
        done: list[Finished] = []
        with self._audit(sender) as audit:
            async with trio.open_nursery() as process:
                stop = process.cancel_scope.cancel
                await process.start(partial(handle_signals, stop=stop, abort=stop, hangup=stop))
                async with (
                    helper_runner(config) as run_helper,
                    connected(config, self.settings, self.wait) as bus,
                    open_caller(
                        bus, wire, sender=sender, ttl=self.settings.ttl, check=lambda: None, metrics=metrics
                    ) as caller,
                    trio.open_nursery() as nursery,
                ):
                    means = load_means(config, run_helper, metrics)
                    nursery.start_soon(caller.watch_connection)
                    print(f"Connected to {bus.url}, as {sender}", flush=True)
                    for identity in self.identities:
                        done.append(await self._one(identity, means, caller, audit))  # noqa: PERF401 - kept when cut
                    nursery.cancel_scope.cancel()
                process.cancel_scope.cancel()
        if len(done) < len(self.identities):
            print("Stopped")
            return 130
        return _code(done)

    @contextmanager
    def _audit(self, sender: str) -> Iterator[AuditTrail | None]:
        if self.config.audit_log is None or self.dry:
            yield None
            return
        trail = AuditTrail(
            self.config.audit_log, provisioner=sender, site=self.config.site, config_file=str(self.config.path)
        )
        try:
            yield trail
        finally:
            trail.close()

    async def _one(self, identity: str, means: Means, caller: Caller, audit: AuditTrail | None) -> Finished:
        print(f"{identity}{' (dry run)' if self.dry else ''}", flush=True)
        if self.dry == "jwt":
            print(f"  {wrapped(_PRICE, 2, terminal_width())}", flush=True)
        run = CycleRun(identity, 1, trio.current_time(), time())
        outcome = await run_cycle(
            run,
            means,
            caller,
            check=lambda: None,
            history=History(),
            on_step=self.screen.step,
            steps=self._rehearse if self.dry else Cycle.run,
        )
        self.screen.end_step()
        ended = run.ended(outcome)
        if audit is not None:
            audit(ended)
        self._tell(ended.finished)
        return ended.finished

    def _tell(self, finished: Finished) -> None:
        width = terminal_width()
        word = f"would end as {finished.outcome}" if self.dry else f"{finished.outcome} after {finished.seconds:.3f} s"
        where = f"{finished.step}: " if finished.step and KINDS[finished.outcome].error else ""
        said = f": {where}{escaped(finished.text)}" if finished.text else ""
        print(wrapped(f"{finished.identity}: {word}{said}", 2, width))
        if KINDS[finished.outcome].error or finished.outcome == "locked":
            print(wrapped(f"  what to do: {KINDS[finished.outcome].cure}", 4, width))

    async def _rehearse(self, cycle: Cycle) -> Outcome:
        """The cycle as far as it goes without writing anything on the server."""
        if self.dry == "jwt":
            await cycle.fetch_jwt()
        await cycle.fetch_inventory()
        reply = await cycle.ask_helper()
        self.screen.end_step()
        width, features = terminal_width(), self.config.features
        untold = [
            key
            for key, missing in {
                "jwt": features.jwt and self.dry != "jwt",
                "csr": features.pki,
                "ed25519_pubkey": features.ed25519,
            }.items()
            if missing
        ]
        if untold:
            text = f"The helper was not told {', '.join(untold)}, which a dry run does not fetch."
            print(f"  {wrapped(text, 2, width)}")
        print("  What would be sent:")
        for line in answer_lines(reply, None if width is None else width - 4):
            print(textwrap.indent(line, " " * 4))
        facts = cycle.facts
        if features.pki:  # the server tells its own ssldir with the request that isn't fetched
            facts = evolve(facts, csr={"ssldir": "the server's own"})
        load = cycle.means.load_issuer
        issuer = load(time()) if load is not None else None
        found = rehearse(reply, facts, self.config, issuer=issuer, now=time())
        for line in complaint_lines(found.complaints[1:], None if width is None else width - 8):
            print(textwrap.indent(f"also: {line}", " " * 2))
        return Outcome(found.word, found.text, cycle.step, reason=reply.reason)


_PRICE = (
    "--with-jwt: the server is now locked for two minutes for others, the daemon included, and makes a new ECDH key: a "
    "cycle that a daemon has under way with it will fail."
)


def _code(done: Sequence[Finished]) -> int:
    bad = [one.outcome for one in done if KINDS[one.outcome].error or one.outcome == "locked"]
    if not bad:
        return EXIT_OK
    return EXIT_UNREACHABLE if set(bad) <= UNREACHED else EXIT_FINDING
