"""What a run leaves for Prometheus: on a page, or in a file for the node exporter's textfile collector."""

import os
import tempfile
import time
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge

from provisioner.errors import EXIT_CODES, EXIT_OK, EXIT_REFUSED, EXIT_UNREACHABLE, GrantError
from provisioner.grants.report import CONSUMER_WORDS, REMOVAL_WORDS, Report
from provisioner.metrics import exposition

_PREFIX = "postgres_provisioner_"


class Metrics:
    """The metrics of one provision. Gauges tell of the last run, counters of all since the start."""

    def __init__(self, registry: CollectorRegistry, provision: str) -> None:
        self.registry = registry
        self._provision = provision

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(_PREFIX + name, text, ["provision", *labels], registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(_PREFIX + name, text, ["provision", *labels], registry=registry)

        self._consumers = gauge("consumers", "Consumers by what the last run did for them", "result")
        self._removals = gauge("removals", "Logins, groups and databases no longer asked for, by result", "result")
        self._retained = gauge("retained", "Roles that keep data of consumers that are gone")
        self._seconds = gauge("run_seconds", "Seconds that the last run took")
        self._statements = gauge("run_statements", "Statements that the last run sent")
        self._last = gauge("last_run_timestamp_seconds", "When the last run ended")
        self._good = gauge("last_success_timestamp_seconds", "When the last run ended that left nothing to be done")
        self._withheld = gauge("removals_withheld", "1 while removals are not made, else 0")
        self._runs = counter("runs", "Runs by their exit code", "exit_code")
        self._ended = counter("sessions_ended", "Sessions of revoked logins that were ended")
        # Every series exists from the start: a rate over a counter that appears at 1 misses its first event.
        for code in EXIT_CODES:
            self._runs.labels(provision, code)
        self._ended.labels(provision)

    def told(self, report: Report) -> None:
        """Takes over what a run did."""
        now = time.time()
        of = self._provision
        self._runs.labels(of, report.exit_code).inc()
        self._last.labels(of).set(now)
        self._seconds.labels(of).set(report.seconds)
        self._statements.labels(of).set(report.statements)
        if report.exit_code == EXIT_OK:
            self._good.labels(of).set(now)
        if report.exit_code == EXIT_REFUSED or (report.exit_code == EXIT_UNREACHABLE and not report.consumers):
            return  # it knows nothing of consumers
        for word in CONSUMER_WORDS:
            self._consumers.labels(of, word).set(sum(each.result == word for each in report.consumers))
        for fate in REMOVAL_WORDS:
            self._removals.labels(of, fate).set(sum(each.result == fate for each in report.removed))
        self._retained.labels(of).set(len(report.retained))
        self._withheld.labels(of).set(bool(report.withheld))
        self._ended.labels(of).inc(sum(each.sessions_ended for each in report.removed))


def write_textfile(path: Path, registry: CollectorRegistry) -> None:
    """Replaces a file of metrics in one step, readable by all.

    Raises:
        GrantError: it can't be written.
    """
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(exposition(registry))
                os.fchmod(file.fileno(), 0o644)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise GrantError(f"the textfile {path} can't be written: {error.strerror}") from None
