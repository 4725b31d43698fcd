"""The metrics page: the reference's names and types, counted as outcomes 3 says, read by Prometheus's own parser."""

import time

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.parser import text_string_to_metric_families

from provisioner.metrics import FAILURES, OUTCOMES, RPCS, SUCCESSES, Metrics, exposition, process_registry

REFERENCE = {
    "choria_provisioner_paused": "gauge",
    "choria_provisioner_discovered": "counter",
    "choria_provisioner_event_discovered": "counter",
    "choria_provisioner_discover_cycles": "counter",
    "choria_provisioner_discovery_errors": "counter",
    "choria_provisioner_provision_errors": "counter",
    "choria_provisioner_provisioned": "counter",
    "choria_provisioner_busy_workers": "gauge",
    "choria_provisioner_work_queue_entries": "gauge",
    "choria_provisioner_waiting_nodes": "gauge",
    "choria_provisioner_rpc_time": "summary",
    "choria_provisioner_rpc_errors": "counter",
    "choria_provisioner_helper_time": "summary",
    "choria_provisioner_helper_errors": "counter",
    "choria_provisioner_helper_shutdown_requests": "counter",
}
"""Seed 3: fifteen names and types; each has the label ``site``, and two also ``rpc``."""


def fresh(site: str = "london") -> Metrics:
    return Metrics(CollectorRegistry(), site)


def samples(registry: CollectorRegistry) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample of the page, by name and labels. The parser adds ``_total`` to what it knows as a counter."""
    page = exposition(registry).decode()
    return {
        (family.name if family.type == "counter" else sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def value(metrics: Metrics, name: str, **labels: str) -> float:
    wanted = tuple(sorted({"site": metrics.site, **labels}.items()))
    return samples(metrics.registry)["choria_provisioner_" + name, wanted]


def test_every_reference_metric_is_there_from_the_start() -> None:
    page = exposition(fresh().registry).decode()
    types = dict(line.split()[2:4] for line in page.splitlines() if line.startswith("# TYPE"))
    helps = {line.split()[2] for line in page.splitlines() if line.startswith("# HELP")}
    assert {name: types.get(name) for name in REFERENCE} == REFERENCE
    assert set(types) == helps
    assert "_total" not in page
    assert "_created" not in page
    found = {name for name, _ in samples(fresh().registry)}
    for name, kind in REFERENCE.items():
        wanted = {f"{name}_count", f"{name}_sum"} if kind == "summary" else {name}
        assert wanted <= found


def test_labels_are_site_and_fixed_words_only() -> None:
    for name, labels in samples(fresh().registry):
        keys = {key for key, _ in labels} - {"le"}
        expected = {"site"}
        if "_rpc_" in name:
            expected = {"site", "rpc"}
        elif name.endswith("_outcomes"):
            expected = {"site", "outcome"}
        elif name.endswith("_refused_sightings"):
            expected = {"site", "reason"}
        assert keys == expected, name
        assert dict(labels)["site"] == "london"


def test_a_line_of_each_kind_word_for_word() -> None:
    metrics = fresh()
    metrics.discovered.inc()
    page = exposition(metrics.registry).decode().splitlines()
    start = page.index("# TYPE choria_provisioner_discovered counter")
    assert page[start - 1].startswith("# HELP choria_provisioner_discovered ")
    assert page[start + 1] == 'choria_provisioner_discovered{site="london"} 1.0'
    assert 'choria_provisioner_rpc_errors{site="london",rpc="rpcutil#inventory"} 0.0' in page
    assert 'choria_provisioner_helper_time_seconds_bucket{site="london",le="+Inf"} 0.0' in page


@pytest.mark.parametrize("word", OUTCOMES)
def test_an_outcome_counts_where_its_word_belongs(word: str) -> None:
    metrics = fresh()
    metrics.ended(word)
    counted = {
        name: value(metrics, name)
        for name in ("provisioned", "provision_errors", "helper_errors", "helper_shutdown_requests")
    }
    assert counted == {
        "provisioned": float(word == "provisioned"),
        "provision_errors": float(word in FAILURES),
        "helper_errors": float(word.startswith("helper_")),
        "helper_shutdown_requests": float(word == "shut_down"),
    }
    assert value(metrics, "outcomes", outcome=word) == 1
    assert sum(v for (name, _), v in samples(metrics.registry).items() if name.endswith("_outcomes")) == 1


def test_the_words_are_those_of_the_specification() -> None:
    assert len(SUCCESSES) == 7
    assert len(FAILURES) == 29
    assert len(set(OUTCOMES)) == 36


def test_an_unknown_word_is_counted_as_a_bug_and_makes_no_series() -> None:
    metrics = fresh()
    before = len(samples(metrics.registry))
    for number in range(50):
        metrics.ended(f"n{number}.example.net")
    assert value(metrics, "outcomes", outcome="internal_error") == 50
    assert value(metrics, "provision_errors") == 50
    assert len(samples(metrics.registry)) == before


def test_timers_count_whatever_the_end() -> None:
    metrics = fresh()
    with metrics.rpc_time(RPCS[0]):
        pass
    with pytest.raises(KeyError), metrics.rpc_time(RPCS[0]):
        raise KeyError
    with pytest.raises(KeyError), metrics.helper_time():
        raise KeyError
    metrics.rpc_failed(RPCS[0])
    assert value(metrics, "rpc_time_count", rpc=RPCS[0]) == 2
    assert value(metrics, "rpc_time_seconds_count", rpc=RPCS[0]) == 2
    assert value(metrics, "rpc_time_seconds_bucket", rpc=RPCS[0], le="+Inf") == 2
    assert value(metrics, "rpc_time_sum", rpc=RPCS[0]) == value(metrics, "rpc_time_seconds_sum", rpc=RPCS[0]) > 0
    assert value(metrics, "rpc_time_count", rpc=RPCS[1]) == 0
    assert value(metrics, "rpc_errors", rpc=RPCS[0]) == 1
    assert value(metrics, "helper_time_count") == 1
    assert value(metrics, "helper_time_seconds_count") == 1


def test_waiting_is_one_number_in_two_gauges() -> None:
    metrics = fresh()
    metrics.waiting(7)
    assert value(metrics, "work_queue_entries") == value(metrics, "waiting_nodes") == 7


def test_refusals_are_counted_by_reason() -> None:
    metrics = fresh()
    metrics.refused_sighting("roster_full")
    assert value(metrics, "refused_sightings", reason="roster_full") == 1
    assert value(metrics, "refused_sightings", reason="bad_identity") == 0


def test_paused_until_a_term_opens() -> None:
    assert value(fresh(), "paused") == 1


def test_two_services_in_one_process_count_apart() -> None:
    one, two = fresh("london"), fresh("paris")
    one.provisioned.inc()
    assert value(one, "provisioned") == 1
    assert value(two, "provisioned") == 0


def test_a_site_of_any_text_survives_the_format() -> None:
    site = 'lo"n\\d\non é'
    metrics = fresh(site)
    metrics.provisioned.inc(3)
    assert value(metrics, "provisioned") == 3


def test_other_programs_metrics_are_rendered_alike() -> None:
    registry = CollectorRegistry()
    Counter("postgres_provisioner_runs", "Runs\nwith \\ in it", registry=registry).inc(2)
    Gauge("postgres_provisioner_grants", "Grants", registry=registry).set(1.5)
    assert exposition(registry).decode().splitlines() == [
        "# HELP postgres_provisioner_runs Runs\\nwith \\\\ in it",
        "# TYPE postgres_provisioner_runs counter",
        "postgres_provisioner_runs 2.0",
        "# HELP postgres_provisioner_grants Grants",
        "# TYPE postgres_provisioner_grants gauge",
        "postgres_provisioner_grants 1.5",
    ]


def test_the_process_registry_tells_memory_and_files() -> None:
    found = samples(process_registry())
    assert found["process_resident_memory_bytes", ()] > 1e6
    assert found["process_open_fds", ()] > 0


def test_timings_are_counts_in_each_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = fresh()
    clock = iter((0.0, 0.004, 1.0, 1.3, 2.0, 2.4, 3.0, 102.0, 200.0, 200.02))
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    for _ in range(4):
        with metrics.helper_time():
            pass
    with metrics.rpc_time("rpcutil#inventory"):
        pass
    metrics.rpc_failed("rpcutil#inventory")
    found = metrics.timings()
    assert found["bounds"] == [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0]
    assert found["helper"] == {"calls": [1, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 1], "seconds": 99.704}
    assert set(found["rpc"]) == set(RPCS)
    inventory = {"calls": [0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0], "seconds": 0.02, "errors": 1}
    assert found["rpc"]["rpcutil#inventory"] == inventory
    assert found["rpc"]["choria_provision#jwt"] == {"calls": [0] * 12, "seconds": 0, "errors": 0}
