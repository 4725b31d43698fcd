"""Every metric of ``mesh-provisioner``, on a registry that the caller owns. No label ever holds a stranger's text."""

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from provisioner.bus.interface import Bus
from provisioner.registry.answer import BAD_REQUEST, INTERNAL, UNAVAILABLE
from provisioner.registry.buckets import Mirror
from provisioner.registry.keys import SHAPES

ANSWERED = "answered"
UNKNOWN = "unknown"
"""The ``what`` of a question that was not understood."""

OUTCOMES = (ANSWERED, BAD_REQUEST, UNAVAILABLE, INTERNAL)
IGNORED = ("no_reply_subject", "reply_subject", "not_sent")
CHANGES = ("create", "update", "delete")
RECONCILED, FAILED = "reconciled", "failed"

_PREFIX = "mesh_provisioner_"
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0)


class Metrics:
    """The metrics of one service; two services in one process need a registry each."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(_PREFIX + name, text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(_PREFIX + name, text, labels, registry=registry)

        self.requests = counter("requests", "Questions, by what they asked for and how they ended", "what", "outcome")
        self.ignored = counter("ignored_requests", "Questions that got no answer, by the reason", "reason")
        self.open_requests = gauge("open_requests", "Questions that are being answered now")
        self.request_time = Histogram(
            _PREFIX + "request_time_seconds",
            "Seconds from a question's arrival to its answer",
            registry=registry,
            buckets=_BUCKETS,
        )
        self.reconciles = counter("reconciles", "Comparisons of the registry with the table", "outcome")
        self.changes = counter("changes", "Keys of the registry that were written or deleted", "change")
        self.reconciled_at = gauge("reconciled_timestamp_seconds", "When the registry last equalled the table")
        self._available = gauge("bucket_available", "1 while the bucket can be read, else 0", "bucket")
        self._keys = gauge("bucket_keys", "Keys held of the bucket", "bucket")
        self._bad_keys = gauge("bucket_bad_keys", "Keys out of the bucket's shape", "bucket")
        self._connected = gauge("connected", "1 while there is a connection to the server, else 0")
        # Every series exists from the start: a rate over a counter that appears at 1 misses its first event.
        for outcome in OUTCOMES:
            for what in (*SHAPES, UNKNOWN):
                self.requests.labels(what, outcome)
        for reason in IGNORED:
            self.ignored.labels(reason)
        for change in CHANGES:
            self.changes.labels(change)
        for outcome in (RECONCILED, FAILED):
            self.reconciles.labels(outcome)

    def watch(self, bus: Bus, mirrors: dict[str, Mirror]) -> None:
        """Takes the gauges of the connection and the buckets from where they are, whenever the page is read."""
        self._connected.set_function(lambda: bus.connected)
        for mirror in mirrors.values():
            bucket = mirror.shape.bucket
            self._available.labels(bucket).set_function(partial(_available, mirror))
            self._keys.labels(bucket).set_function(partial(_keys, mirror))
            self._bad_keys.labels(bucket).set_function(partial(_bad_keys, mirror))


def _available(mirror: Mirror) -> float:
    return not mirror.problem


def _keys(mirror: Mirror) -> float:
    return mirror.keys[0]


def _bad_keys(mirror: Mirror) -> float:
    return mirror.keys[1]
