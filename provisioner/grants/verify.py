"""Tries passwords over real connections: new ones must be accepted, replaced and revoked ones refused (``--verify``).

"Accepted" means that the server asked for a password and took this one. A server that lets anybody in without asking
accepts a wrong one too, so a wrong one is tried with each right one.
"""

import logging
import secrets

import psycopg
from attrs import evolve, frozen
from psycopg.conninfo import make_conninfo

from provisioner.grants import plan
from provisioner.grants.postgres import APPLICATION, Link
from provisioner.grants.report import Report
from provisioner.secret import Secret

log = logging.getLogger(__name__)

_CONNECT_SECONDS = 10


@frozen
class Verify:
    """Tries what one run has set.

    ``former`` are passwords by login that were delivered before: those that differ now must be refused.
    """

    link: Link
    report: Report
    secrets: dict[str, Secret]
    former: dict[str, Secret]

    def run(self, decided: plan.Plan, *, dry: bool) -> None:
        """Tries each, and writes what it found into the report; a wrong finding makes that consumer ``failed``."""
        databases = {each.consumer.login: each.consumer.database for each in decided.services}
        for index, each in enumerate(self.report.consumers):
            if each.result not in {"created", "set", "would_set"}:
                continue
            self.link.go_on()
            fault = self._fault(each.login, databases[each.login])
            if fault is None:
                self.report.consumers[index] = evolve(each, verified="password accepted")
            elif dry:
                self.report.consumers[index] = evolve(each, drift=(*each.drift, fault), verified=fault)
            else:
                log.error("%s: %s", each.login, fault, extra={"login": each.login})
                self.report.consumers[index] = evolve(each, result="failed", why=fault, verified=fault)
        if dry:
            return
        for index, gone in enumerate(self.report.removed):
            former = self.former.get(gone.login, Secret(secrets.token_urlsafe()))
            if gone.what != "login" or gone.result not in {"removed", "disabled"}:
                continue
            if self._asked_and_took(gone.login, former, self.link.base.get("dbname", "postgres"), anyhow=True):
                log.error("%s can still log in", gone.login, extra={"login": gone.login})
                self.report.removed[index] = evolve(gone, result="failed", why="it can still log in")
            else:
                self.report.removed[index] = evolve(gone, verified="login refused")

    def _fault(self, login: str, database: str) -> str | None:
        current = self.secrets[login]
        if not self._asked_and_took(login, current, database):
            return "its password is refused, or the server lets it in without asking for one"
        wrong = [Secret(secrets.token_urlsafe())]
        former = self.former.get(login)
        if former is not None and former != current:
            wrong.append(former)
        for each in wrong:
            if self._asked_and_took(login, each, database, anyhow=True):
                return "a password that is not its own is accepted: see pg_hba.conf"
        return None

    def _asked_and_took(self, login: str, password: Secret, database: str, *, anyhow: bool = False) -> bool:
        """Whether the login gets in. ``anyhow``: also where no password was asked for."""
        given = self.link.base | {"user": login, "dbname": database, "password": password.reveal()}
        given |= {"application_name": APPLICATION, "connect_timeout": _CONNECT_SECONDS, "passfile": "/dev/null"}
        given.pop("options", None)
        try:
            with psycopg.connect(make_conninfo("", **given)) as connection:
                return anyhow or bool(connection.pgconn.used_password)
        except psycopg.Error:
            return False
