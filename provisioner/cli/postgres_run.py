"""``postgres-provisioner run``: one run, or one after every change of the files."""

import argparse
import json
import logging
import math
import sys
from functools import partial
from pathlib import Path

import trio
from attrs import frozen
from prometheus_client import CollectorRegistry

from provisioner import monitor
from provisioner.cli.logs import LEVELS, Logs
from provisioner.cli.signals import handle_signals
from provisioner.durations import parse_duration
from provisioner.errors import EXIT_FINDING, EXIT_OK, ConfigError, Fault, GrantError
from provisioner.grants import files, reconcile
from provisioner.grants.manifest import DEFAULT_PROVISION
from provisioner.grants.metrics import Metrics, write_textfile
from provisioner.grants.plan import Policy
from provisioner.grants.postgres import Link, parameters
from provisioner.grants.report import Report
from provisioner.grants.watch import watch
from provisioner.secret import Secret

log = logging.getLogger(__name__)

COMPONENT = "postgres-provisioner"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the flags (issue 6; mesh.md A5)."""
    add = parser.add_argument
    add("--manifest", type=Path, metavar="FILE", help="who is asked for; written by the host")
    add("--grants", type=Path, metavar="DIR", help="the directory with the secret files")
    add("--provision", metavar="NAME", help=f"the provision that this is for (default: {DEFAULT_PROVISION})")
    add("--declaration", type=Path, metavar="FILE", help="the provider module's file, which says where the others are")
    add("--dsn", help="libpq connection string, without a password (default: libpq's environment)")
    add(
        "--on-revoke",
        choices=("retain", "drop"),
        default="retain",
        help="what becomes of the data of consumers that are gone, of those gone before too (default: retain)",
    )
    add("--max-remove", type=_count, metavar="N", help="remove nothing when more than N would go")
    add("--extensions", type=_names, default=(), metavar="A,B", help="extensions that consumers may ask for")
    looking = parser.add_mutually_exclusive_group()
    looking.add_argument("--dry-run", action="store_true", help="tell what would be done, and change nothing")
    looking.add_argument("--check", action="store_true", help="as --dry-run, and exit 1 if anything would be changed")
    add("--verify", action="store_true", help="try the passwords afterwards: new ones accepted, others refused")
    add("--watch", action="store_true", help="run again after every change of the files, until told to stop")
    add("--interval", type=_duration, default="5m", metavar="TIME", help="with --watch: run at least so often (5m)")
    add("--json", action="store_true", help="the report as JSON on standard output; logs go to standard error")
    add("--loglevel", choices=tuple(LEVELS), help="default: info with --watch, else warn")
    add("--logfile", default="stderr", metavar="FILE", help="log there, as JSON lines (default: standard error)")
    add("--textfile", type=Path, metavar="FILE", help="write metrics there, for a textfile collector")
    add("--monitor-port", type=_port, metavar="PORT", help="with --watch: serve /metrics and /healthz there")


def main(arguments: argparse.Namespace) -> int:
    """Runs.

    Raises:
        ConfigError: the flags, or a file that they name, can't be used.
    """
    job = _job(arguments)
    if arguments.watch and job.only_looks:
        raise _fault("--watch", "doesn't go with --dry-run and --check")
    if arguments.monitor_port is not None and not arguments.watch:
        raise _fault("--monitor-port", "is for --watch; a single run can leave its metrics with --textfile")
    level = "debug" if arguments.debug else arguments.loglevel or ("info" if arguments.watch else "warn")
    with Logs(COMPONENT, level, arguments.logfile) as logs:
        registry = CollectorRegistry()
        program = _Program(job, arguments, logs, registry, Metrics(registry, job.provision))
        return trio.run(program.watch if arguments.watch else program.once)


def _job(arguments: argparse.Namespace) -> reconcile.Job:
    manifest, grants, provision = arguments.manifest, arguments.grants, arguments.provision
    try:
        if arguments.declaration is not None:
            found = files.read_declaration(arguments.declaration, provision=provision)
            manifest, grants, provision = manifest or found.manifest, grants or found.grants, found.provision
        base = parameters(arguments.dsn)
    except GrantError as error:
        raise ConfigError([Fault("command line", "", str(error))]) from None
    missing = [flag for flag, value in (("--manifest", manifest), ("--grants", grants)) if value is None]
    if missing:
        raise _fault(" and ".join(missing), "is needed, or --declaration with the provider module's file")
    return reconcile.Job(
        manifest=manifest.absolute(),
        grants=grants.absolute(),
        provision=provision or DEFAULT_PROVISION,
        policy=Policy(arguments.on_revoke, frozenset(arguments.extensions), arguments.max_remove),
        dry_run=arguments.dry_run,
        check=arguments.check,
        verify=arguments.verify,
        base=base,
    )


def _fault(flag: str, problem: str) -> ConfigError:
    return ConfigError([Fault("command line", flag, problem)])


@frozen
class _Program:
    """The runs of one process. They block, so they have a thread of their own, one at a time."""

    job: reconcile.Job
    arguments: argparse.Namespace
    logs: Logs
    registry: CollectorRegistry
    metrics: Metrics

    async def once(self) -> int:
        """One run; told to stop, it ends at its next statement."""
        link = Link(self.job.base)
        code = EXIT_FINDING  # cut short by a second order to end
        async with trio.open_nursery() as nursery:

            def stop() -> None:
                nursery.start_soon(partial(trio.to_thread.run_sync, link.stop, abandon_on_cancel=True))

            await nursery.start(
                partial(handle_signals, stop=stop, abort=nursery.cancel_scope.cancel, hangup=self.logs.reopen)
            )
            code = (await self._run(link, {}))[0].exit_code
            nursery.cancel_scope.cancel()
        return code

    async def watch(self) -> int:
        """Runs again and again; told to stop, it ends the run under way at its next statement."""
        link = Link(self.job.base)
        former: dict[str, Secret] = {}
        running = trio.Lock()
        leaving = False

        async def run() -> int:
            nonlocal link, former
            if leaving:
                await trio.sleep_forever()
            async with running:
                link = Link(self.job.base)
                report, secrets = await self._run(link, former)
                if self.job.verify and secrets:
                    former = secrets
                return report.exit_code

        async with trio.open_nursery() as nursery:
            watching = trio.CancelScope()

            async def leave() -> None:
                nonlocal leaving
                leaving = True
                await trio.to_thread.run_sync(link.stop, abandon_on_cancel=True)
                async with running:
                    watching.cancel()

            await nursery.start(
                partial(
                    handle_signals,
                    stop=lambda: nursery.start_soon(leave),
                    abort=nursery.cancel_scope.cancel,
                    hangup=self.logs.reopen,
                )
            )
            if self.arguments.monitor_port is not None:
                routes = {
                    "/metrics": monitor.metrics_route(self.registry),
                    "/healthz": monitor.Route(lambda _: monitor.Response(b"ok\n")),
                }
                serve = partial(monitor.serve, file="command line", key="--monitor-port")
                await nursery.start(serve, self.arguments.monitor_port, routes)
            with watching:
                await watch(run, self.job.manifest, self.job.grants, interval=self.arguments.interval)
            nursery.cancel_scope.cancel()
        return EXIT_OK

    async def _run(self, link: Link, former: dict[str, Secret]) -> tuple[Report, dict[str, Secret]]:
        work = partial(reconcile.reconcile, self.job, link, former=former, progress=_progress)
        # Only the second order to end cancels this: then what the thread still does is left to the server to undo.
        done = await trio.to_thread.run_sync(work, limiter=trio.CapacityLimiter(1), abandon_on_cancel=True)
        self._tell(done.report)
        return done.report, done.secrets

    def _tell(self, report: Report) -> None:
        if self.arguments.json:
            indent = None if self.arguments.watch else 2
            print(json.dumps(report.document(), ensure_ascii=True, indent=indent), flush=True)
        else:
            print("\n".join(report.lines(brief=self.arguments.watch)), flush=True)
        self.metrics.told(report)
        if self.arguments.textfile is not None:
            try:
                write_textfile(self.arguments.textfile, self.registry)
            except GrantError as error:
                log.error("%s", error)  # noqa: TRY400 - no traceback


def _progress(done: int, every: int) -> None:
    print(f"{done} of {every} consumers", file=sys.stderr, flush=True)


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError
    return number


def _port(text: str) -> int:
    number = int(text)
    if not 0 <= number <= 65535:
        raise ValueError
    return number


def _names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (each.strip() for each in text.split(","))))


def _duration(text: str) -> float:
    seconds = parse_duration(text)
    if not (math.isfinite(seconds) and seconds >= 1):
        raise ValueError
    return seconds
