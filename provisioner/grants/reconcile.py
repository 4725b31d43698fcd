"""One run: read completely, decide purely, make true consumer by consumer, then take away (mesh.md A4, A5)."""

import datetime
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attrs import field, frozen

from provisioner.errors import GrantError, RunEnded
from provisioner.grants import files, mark, naming, plan, survey
from provisioner.grants.catalogue import Server
from provisioner.grants.ensure import Ensure
from provisioner.grants.manifest import Consumer, Manifest, Refused
from provisioner.grants.postgres import Link, Session
from provisioner.grants.remove import Remove
from provisioner.grants.report import ConsumerResult, ConsumerWord, RemovalResult, RemovalWord, Report
from provisioner.grants.verify import Verify
from provisioner.secret import Secret

log = logging.getLogger(__name__)

_PROGRESS_SECONDS = 5.0


@frozen
class Job:
    """What a run is for.

    Attributes:
        manifest: the manifest's path.
        grants: the directory that the secrets are in.
        provision: the provision's name.
        policy: the operator's choices about removal and extensions.
        dry_run: decide and tell, and change nothing.
        check: as a dry run, and differences count as a finding.
        verify: try passwords afterwards, over real connections.
        base: libpq connection parameters; what is missing comes from libpq's environment.
    """

    manifest: Path
    grants: Path
    provision: str
    policy: plan.Policy = field(factory=plan.Policy)
    dry_run: bool = False
    check: bool = False
    verify: bool = False
    base: dict[str, Any] = field(factory=dict, repr=False)

    @property
    def only_looks(self) -> bool:
        """It changes nothing on the server."""
        return self.dry_run or self.check


@frozen
class Run:
    """A finished run: its report, and the passwords that it set, for the next one to try as replaced ones."""

    report: Report
    secrets: dict[str, Secret] = field(factory=dict, repr=False)


def reconcile(
    job: Job,
    link: Link,
    *,
    former: dict[str, Secret] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Run:
    """Makes the server as the manifest says, from wherever it is.

    It blocks: call it in a thread of its own. ``link.stop()`` from another thread ends it at its next statement.

    Args:
        job: what the run is for.
        link: how the server is reached.
        former: with ``verify``, passwords by login that may have been replaced or revoked, and must not work any more.
        progress: told (done, all) of the consumers, not more often than every few seconds.

    Returns:
        The report. Refused input and a lost server are in it, not raised.
    """
    begun = time.monotonic()
    report = Report(job.provision, dry_run=job.only_looks, check=job.check)
    counter = _Counter(link.on_statement)
    link.on_statement = counter
    secrets: dict[str, Secret] = {}
    wanted: Manifest | None = None
    try:
        delivery = files.read(job.manifest, job.grants, provision=job.provision)
        wanted = delivery.manifest
        report.manifest_sha256 = delivery.sha256
        report.notes += delivery.manifest.notes
        secrets = {naming.login_name(*identity): each for identity, each in delivery.secrets.items()}
        with link.connect() as session:
            _Work(job, link, session, report, secrets, former or {}, progress).run(delivery.manifest)
    except RunEnded as error:
        report.ended, report.stopped = str(error), link.is_stopping
        log.error("the run ended early: %s", error)  # noqa: TRY400 - no traceback
        if wanted is not None and not report.consumers:
            report.consumers += [*map(_untried, wanted.consumers), *map(_untried, wanted.refused)]
    except GrantError as error:
        report.refused = str(error)
        log.error("nothing was changed: %s", error)  # noqa: TRY400 - no traceback
    finally:
        link.on_statement = counter.then
    report.statements = counter.count
    report.seconds = time.monotonic() - begun
    return Run(report, secrets)


class _Counter:
    """Counts statements on their way."""

    def __init__(self, then: Callable[[str], None]) -> None:
        self.then = then
        self.count = 0

    def __call__(self, statement: str) -> None:
        self.count += 1
        self.then(statement)


@frozen
class _Work:
    job: Job
    link: Link
    session: Session
    report: Report
    secrets: dict[str, Secret] = field(repr=False)
    former: dict[str, Secret] = field(repr=False)
    progress: Callable[[int, int], None] | None

    def run(self, wanted: Manifest) -> None:
        server = survey.identify(self.session)
        if not self.job.only_looks:
            survey.take_lock(self.session, self.job.provision)
        roles, databases = _names(wanted)
        catalogue = survey.survey(self.session, server, self.job.provision, roles, databases)
        decided = plan.plan(wanted, catalogue, self.job.policy)
        self.report.retained += decided.retained
        self.report.withheld = decided.withheld or ""
        for each in decided.refused:
            log.error("%s.%s: %s", each.node, each.module, each.why, extra={"login": each.login})
            self.report.consumers.append(ConsumerResult(each.node, each.module, each.login, "failed", each.why))
        if self.job.only_looks:
            self._tell(decided)
        else:
            self._ensure(decided, server)
            self._remove(decided, server)
        if self.job.verify:
            Verify(self.link, self.report, self.secrets, self.former).run(decided, dry=self.job.only_looks)
        self.report.consumers.sort(key=lambda each: (each.node, each.module))

    def _tell(self, decided: plan.Plan) -> None:
        for service in decided.services:
            who = service.consumer
            if service.why is not None:
                self._failed(service, service.why)
                continue
            drift = tuple(map(str, service.steps)) if service.drifted else ()
            word = "would_create" if service.is_new else "would_set"
            self.report.consumers.append(
                ConsumerResult(
                    who.node, who.module, who.login, "would_create" if service.is_new else "would_set", drift=drift
                )
            )
            log.debug("%s: %s", who.login, word)
        for removal in decided.removals:
            self.report.removed.append(self._removal(removal, decided, "would_remove"))

    def _removal(self, removal: plan.Removal, decided: plan.Plan, word: RemovalWord) -> RemovalResult:
        """What a removal that isn't made is told as."""
        fate = ""
        if removal.databases and removal.what != "group":
            fate = "dropped" if self.job.policy.on_revoke == "drop" else "retained"
        return RemovalResult(
            removal.name,
            "withheld" if decided.withheld else word,
            removal.what,
            why=removal.why or "",
            database=fate,
            databases=removal.databases if fate else (),
        )

    def _failed(self, service: plan.Service, why: str) -> None:
        who = service.consumer
        log.error("%s: %s", who.login, why, extra={"login": who.login})
        self.report.consumers.append(ConsumerResult(who.node, who.module, who.login, "failed", why))

    def _ensure(self, decided: plan.Plan, server: Server) -> None:
        hands = Ensure(self.link, self.session, server, self.job.provision)
        told = time.monotonic()
        for done, service in enumerate(decided.services):
            who = service.consumer
            if self.progress is not None and time.monotonic() - told >= _PROGRESS_SECONDS:
                self.progress(done, len(decided.services))
                told = time.monotonic()
            if service.why is not None:
                self._failed(service, service.why)
                continue
            try:
                hands.serve(service, self.secrets[who.login])
            except RunEnded:
                self._not_tried(decided, done)
                raise
            except GrantError as error:
                self._failed(service, str(error))
                continue
            word: ConsumerWord = "created" if service.is_new else "set"
            self.report.consumers.append(ConsumerResult(who.node, who.module, who.login, word))
            log.info("%s: %s", who.login, word, extra={"login": who.login})

    def _not_tried(self, decided: plan.Plan, done: int) -> None:
        self.report.consumers += [_untried(service.consumer) for service in decided.services[done:]]
        self.report.removed += [self._removal(each, decided, "not_tried") for each in decided.removals]

    def _remove(self, decided: plan.Plan, server: Server) -> None:
        if decided.withheld is not None:
            log.warning("nothing is removed: %s", decided.withheld)
            self.report.removed += [self._removal(each, decided, "withheld") for each in decided.removals]
            return
        if not decided.removals:
            return
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        policy = self.job.policy
        hands = Remove(self.link, self.session, server, self.job.provision, policy.on_revoke, now, policy.quiet_seconds)
        hands.remove(decided.removals, self.report.removed)
        for each in self.report.removed:
            log.info("%s: %s", each.login, each.result, extra={"login": each.login})


def _untried(each: Consumer | Refused) -> ConsumerResult:
    return ConsumerResult(each.node, each.module, each.login, "not_tried")


def _names(wanted: Manifest) -> tuple[set[str], set[str]]:
    """Every name that the manifest may want for a role, and for a database."""
    roles: set[str] = set()
    for node, module in wanted.asked:
        roles |= {naming.login_name(node, module), naming.kept_name(node, module)}
    for consumer in wanted.consumers:
        if consumer.access != "owner":
            roles |= {naming.group_name(consumer.database, kind) for kind in mark.GROUPS}
    return roles, {consumer.database for consumer in wanted.consumers}
