"""Every metric of ``choria-provisioner``, on a registry that the caller owns, and the text page they are read from.

The names are those that dashboards of the Go program know (wire-protocol A.3): its counters carry no ``_total``. The
Prometheus client library insists on that suffix, so ``exposition`` writes the page itself: always the text format
0.0.4, whatever the scraper accepts, because OpenMetrics would force the suffix back on.

No metric carries a server's name: the number of series is fixed when the process starts, whatever the fleet does.
"""

import logging
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, Summary
from prometheus_client.metrics_core import Metric
from prometheus_client.utils import floatToGoString

log = logging.getLogger(__name__)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

SUCCESSES: tuple[str, ...] = ("provisioned", "deferred", "shut_down", "upgrading", "locked", "stale", "lost_lead")
"""Ends of a cycle that are no error (spec: outcomes 1)."""

FAILURES: tuple[str, ...] = (
    "no_reply",
    "refused",
    "bad_reply",
    "answered_twice",
    "jwt_missing",
    "jwt_malformed",
    "jwt_bad_algorithm",
    "jwt_bad_signature",
    "jwt_expired",
    "jwt_not_yet_valid",
    "jwt_wrong_purpose",
    "challenge_failed",
    "csr_malformed",
    "csr_bad_signature",
    "csr_wrong_name",
    "csr_denied",
    "csr_extension",
    "helper_not_started",
    "helper_too_slow",
    "helper_failed",
    "helper_silent",
    "helper_too_much",
    "helper_bad_reply",
    "bad_configuration",
    "seal_failed",
    "upgrade_failed",
    "upgrade_loop",
    "connection_lost",
    "internal_error",
)
"""Ends of a cycle that are errors (spec: outcomes 2)."""

OUTCOMES: tuple[str, ...] = SUCCESSES + FAILURES

REFUSALS: tuple[str, ...] = ("bad_identity", "roster_full", "bad_event", "bad_reply")
"""Why a sighting was turned away at the door, before it cost anything."""

RPCS: tuple[str, ...] = (
    "choria_provision#jwt",
    "choria_provision#gen25519",
    "rpcutil#inventory",
    "choria_provision#gencsr",
    "choria_provision#release_update",
    "choria_provision#configure",
    "choria_provision#restart",
    "choria_provision#shutdown",
)
"""Every ``rpc`` label there is: ``agent#action`` (seed 3)."""

_PREFIX = "choria_provisioner_"
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """The metrics of one service. Two services in one process need a registry each.

    The fields are the library's own counters and gauges, already labelled with the site:
    ``metrics.discovered.inc()``, ``metrics.paused.set(0)``. What belongs together is counted together, by ``ended``,
    ``waiting``, ``rpc_time``, ``rpc_failed``, ``helper_time`` and ``refused_sighting``.

    Args:
        registry: where they are registered.
        site: the value of the label ``site`` on each of them.
    """

    def __init__(self, registry: CollectorRegistry, site: str) -> None:
        self.registry = registry
        self.site = site

        def counter(name: str, text: str) -> Counter:
            return Counter(_PREFIX + name, text, ["site"], registry=registry).labels(site)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(_PREFIX + name, text, ["site"], registry=registry).labels(site)

        self.discovered = counter("discovered", "Servers newly put on the list through a discovery")
        self.event_discovered = counter("event_discovered", "Servers newly put on the list through a startup event")
        self.discover_cycles = counter("discover_cycles", "Discoveries started")
        self.discovery_errors = counter("discovery_errors", "Discoveries that failed")
        self.provisioned = counter("provisioned", "Servers that accepted their configuration and a restart")
        self.provision_errors = counter("provision_errors", "Cycles that ended in an error")
        self.busy_workers = gauge("busy_workers", "Cycles under way")
        self.work_queue_entries = gauge("work_queue_entries", "Servers that wait for a worker")
        self.waiting_nodes = gauge("waiting_nodes", "The same number, kept for dashboards")
        self.paused = gauge("paused", "1 while this instance may not act, else 0")
        self.paused.set(1)
        self.helper_errors = counter("helper_errors", "Helper runs without a usable answer")
        self.helper_shutdown_requests = counter(
            "helper_shutdown_requests", "Shutdowns that a helper asked for and the server accepted"
        )
        self.connected = gauge("connected", "1 while there is a connection to the broker, else 0")
        self.members = gauge("members", "Instances that share this fleet, as this one sees them")
        rpc_time = Summary(_PREFIX + "rpc_time", "Seconds an RPC call took", ["site", "rpc"], registry=registry)
        rpc_seconds = Histogram(
            _PREFIX + "rpc_time_seconds",
            "Seconds an RPC call took, in buckets",
            ["site", "rpc"],
            registry=registry,
            buckets=_BUCKETS,
        )
        rpc_errors = Counter(
            _PREFIX + "rpc_errors",
            "RPC calls without a usable answer after all their tries",
            ["site", "rpc"],
            registry=registry,
        )
        helper_time = Summary(_PREFIX + "helper_time", "Seconds a helper ran", ["site"], registry=registry)
        helper_seconds = Histogram(
            _PREFIX + "helper_time_seconds",
            "Seconds a helper ran, in buckets",
            ["site"],
            registry=registry,
            buckets=_BUCKETS,
        )
        outcomes = Counter(_PREFIX + "outcomes", "How cycles ended", ["site", "outcome"], registry=registry)
        refused = Counter(
            _PREFIX + "refused_sightings", "Sightings turned away at the door", ["site", "reason"], registry=registry
        )
        # Every series exists from the start: a rate over a counter that appears at 1 misses its first event.
        self._rpc_errors = {word: rpc_errors.labels(site, word) for word in RPCS}
        self._outcomes = {word: outcomes.labels(site, word) for word in OUTCOMES}
        self._refused = {word: refused.labels(site, word) for word in REFUSALS}
        self._helper_times = (helper_time.labels(site), helper_seconds.labels(site))
        self._rpc_times = {word: (rpc_time.labels(site, word), rpc_seconds.labels(site, word)) for word in RPCS}

    def ended(self, outcome: str) -> None:
        """Counts the end of one cycle in every metric that its word belongs to (spec: outcomes 1 to 3).

        This is ``outcomes{outcome}`` and, by the word, ``provisioned``, ``helper_shutdown_requests``,
        ``provision_errors`` and ``helper_errors``: nobody else counts those.

        Args:
            outcome: one of ``OUTCOMES``; any other word is a bug and is counted as ``internal_error``.
        """
        if outcome not in OUTCOMES:
            log.error("A cycle ended with the unknown word %r, counted as internal_error", outcome)
            outcome = "internal_error"
        self._outcomes[outcome].inc()
        if outcome == "provisioned":
            self.provisioned.inc()
        elif outcome == "shut_down":
            self.helper_shutdown_requests.inc()
        elif outcome in FAILURES:
            self.provision_errors.inc()
            if outcome.startswith("helper_"):
                self.helper_errors.inc()

    def waiting(self, servers: int) -> None:
        """Sets the number of servers that wait for a worker, in both gauges that show it."""
        self.work_queue_entries.set(servers)
        self.waiting_nodes.set(servers)

    def rpc_time(self, rpc: str) -> AbstractContextManager[None]:
        """Times one call with its tries, whatever its end.

        Args:
            rpc: one of ``RPCS``.
        """
        return _Timed(self._rpc_times[rpc])

    def rpc_failed(self, rpc: str) -> None:
        """Counts one call, of ``RPCS``, that ended without a usable answer after all its tries."""
        self._rpc_errors[rpc].inc()

    def helper_time(self) -> AbstractContextManager[None]:
        """Times one helper run, whatever its end, a time-out included."""
        return _Timed(self._helper_times)

    def refused_sighting(self, reason: str) -> None:
        """Counts one sighting turned away at the door; ``reason`` is one of ``REFUSALS``, never text from outside."""
        self._refused[reason].inc()

    def refusals(self) -> dict[str, int]:
        """Sightings turned away so far, by reason."""
        return {word: _count(counter) for word, counter in self._refused.items()}

    def timings(self) -> dict[str, Any]:
        """What the histograms hold, for the status page.

        Returns:
            ``bounds``: the upper bounds of the buckets in seconds, the last open one left out. ``helper``, and ``rpc``
            by ``agent#action``: ``calls`` in each bucket (one more than bounds), their ``seconds`` in all, and for
            ``rpc`` the ``errors``.
        """
        rpc = {
            word: _timing(seconds) | {"errors": _count(self._rpc_errors[word])}
            for word, (_, seconds) in self._rpc_times.items()
        }
        return {"bounds": list(_BUCKETS), "helper": _timing(self._helper_times[1]), "rpc": rpc}


class _Timed:
    """Tells each of the metrics how many seconds the body of a ``with`` block took, whatever its end."""

    __slots__ = ("_metrics", "_started")

    def __init__(self, metrics: Sequence[Summary | Histogram]) -> None:
        self._metrics = metrics

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        seconds = time.perf_counter() - self._started
        for metric in self._metrics:
            metric.observe(seconds)


def _count(counter: Counter) -> int:
    return next(
        int(sample.value) for family in counter.collect() for sample in family.samples if sample.name.endswith("_total")
    )


def _timing(histogram: Histogram) -> dict[str, Any]:
    samples = [sample for family in histogram.collect() for sample in family.samples]
    upto = [int(sample.value) for sample in samples if sample.name.endswith("_bucket")]
    seconds = sum(sample.value for sample in samples if sample.name.endswith("_sum"))
    return {"calls": [more - less for less, more in pairwise([0, *upto])], "seconds": round(seconds, 3)}


def process_registry() -> CollectorRegistry:
    """A fresh registry that also tells memory, CPU time and open files of this process (``process_*``)."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    return registry


def exposition(registry: CollectorRegistry) -> bytes:
    """The page that Prometheus scrapes, for any of the three programs: text format 0.0.4, UTF-8.

    Counters are written under the name they were declared with, without ``_total`` in samples, HELP and TYPE; the
    library's ``_created`` samples are left out.
    """
    return "".join(_family(family) for family in registry.collect()).encode()


def _family(family: Metric) -> str:
    kind = {"unknown": "untyped", "info": "gauge", "stateset": "gauge"}.get(family.type, family.type)
    text = family.documentation.replace("\\", r"\\").replace("\n", r"\n")
    # The process's own metrics have the names that every program's have.
    declared = f"{family.name}_total" if family.name == "process_cpu_seconds" else family.name
    lines = [f"# HELP {declared} {text}\n", f"# TYPE {declared} {kind}\n"]
    for sample in family.samples:
        if sample.name == f"{family.name}_created":
            continue
        name = declared if family.type == "counter" else sample.name
        labels = ",".join(f'{key}="{_escaped(value)}"' for key, value in sample.labels.items())
        lines.append(f"{name}{{{labels}}} " if labels else f"{name} ")
        lines.append(f"{floatToGoString(sample.value)}\n")  # type: ignore[no-untyped-call]
    return "".join(lines)


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
