"""Pages of /metrics as a test has them: parsed by hand, since a parser of the client library renames counters."""

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml
from attrs import frozen

CONTRIB = Path(__file__).parents[2] / "contrib"
ALERTS = CONTRIB / "prometheus" / "alerts.yml"
STEPS = 180
"""Minutes of health before the fault, and of the fault."""

_SAMPLE = re.compile(r"^([a-z_]\w*)(\{.*\})? (\S+)$")
_PART = re.compile(r"_(bucket|sum|count)$")


@frozen
class Page:
    """One scrape: the value of each series, by its name with labels as Prometheus writes them; what its metric is."""

    values: Mapping[str, float]
    kinds: Mapping[str, str]

    def kind(self, series: str) -> str:
        name = series.partition("{")[0]
        return self.kinds.get(name) or self.kinds[_PART.sub("", name)]

    def grows(self, series: str) -> bool:
        return self.kind(series) in {"counter", "histogram", "summary"}


def parsed(text: str | bytes) -> Page:
    """Reads a page."""
    values, kinds = {}, {}
    for line in (text.decode() if isinstance(text, bytes) else text).splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            kinds[name] = kind
        elif not line.startswith("#"):
            found = _SAMPLE.match(line)
            assert found is not None, line
            values[found[1] + (found[2] or "{}")] = float(found[3])
    return Page(values, kinds)


def names(page: Page) -> set[str]:
    return {series.partition("{")[0] for series in page.values}


def _series(series: str, healthy: Page, faulty: Page, job: str) -> dict[str, str]:
    """A series through hours of health and hours of the fault, which goes on as it is seen to begin.

    What only grows goes on growing at the rate at which it grew; times go on if they went on; the rest stays.
    """
    first, last = healthy.values.get(series), faulty.values.get(series)
    labelled = series.replace("{", f'{{job="{job}",instance="here",', 1).replace(",}", "}")
    clock = series.partition("{")[0].endswith("_timestamp_seconds")
    if last is None:  # it is gone with the fault
        return {"series": labelled, "values": f"{'0+60' if clock else repr(first)}x{STEPS} _x{STEPS}"}
    if clock:
        # The clock of a rule test begins at 0; health is a run every minute.
        moves = first is None or last > first
        begin = f"_x{STEPS}" if first is None else f"0+60x{STEPS}"
        return {"series": labelled, "values": f"{begin} {STEPS * 60}+{60 if moves else 0}x{STEPS}"}
    begin = f"_x{STEPS}" if first is None else f"{first!r}x{STEPS}"
    # Below zero: the two pages are of two processes.
    step = max(last - (first or 0), 0) if faulty.grows(series) else 0
    return {"series": labelled, "values": f"{begin} {last!r}+{step!r}x{STEPS}"}


def firing(directory: Path, healthy: Page, faulty: Page, job: str, *, up: bool = True) -> set[str]:
    """The alerts that fire in the end, as promtool sees it; it is made sure that none fires while all is well."""
    series = [_series(each, healthy, faulty, job) for each in {**healthy.values, **faulty.values}]
    series.append({"series": f'up{{job="{job}",instance="here"}}', "values": f"1x{STEPS} {int(up)}x{STEPS}"})
    known = [rule["alert"] for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    # promtool only compares: each alert is asked for as one that fires, and those it denies are told.
    found = set()
    for time, expected in ((STEPS - 1, []), (2 * STEPS - 1, known)):
        tests = [
            {
                "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) > bool 0 or vector(0)',
                "eval_time": f"{time}m",
                "exp_samples": [{"labels": "{}", "value": 0}],
            }
            for alert in known
        ]
        test = {
            "rule_files": [str(ALERTS)],
            "evaluation_interval": "1m",
            "tests": [{"interval": "1m", "input_series": series, "promql_expr_test": tests}],
        }
        path = directory / f"rules-{time}.json"
        path.write_text(json.dumps(test))
        done = subprocess.run(
            ["promtool", "test", "rules", str(path)], capture_output=True, text=True, check=False, timeout=120
        )
        said = done.stdout + done.stderr
        fires = set(re.findall(r'alertname=\\?"(\w+)', said))
        assert done.returncode == 0 or fires, said
        if not expected:
            assert fires == set(), f"while all was well: {fires}"
        found = fires
    return found


def metrics_of(expression: str) -> Sequence[str]:
    """The names of our metrics in an expression."""
    return re.findall(r"\b(?:choria_provisioner|postgres_provisioner|mesh_provisioner|process)_\w+", expression)
