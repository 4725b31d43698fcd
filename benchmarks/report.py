"""The report of a run of ``python -m benchmarks``: tables for ``docs/performance.md``, and its plots as SVG.

    python -m benchmarks.report

fills the page anew from ``benchmarks/results.json``.
"""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "performance.md"
PLOTS = DOCS / "plots"

_MARK = re.compile(r"(<!-- measured: (\w+) -->\n).*?(<!-- /measured -->)", re.DOTALL)
Results = dict[str, Any]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def _security(case: dict[str, Any]) -> str:
    if case["version"] == 2:
        return "Ed25519"
    return "RSA" if case["signed"] else "none"


def machine(results: Results) -> str:
    its, loads, others = results["machine"], results["loads"], results["others"] or [0.0]
    bare = results.get("yardsticks", [])
    begun = ", ".join(f"{at} ({part})" for part, at in results["times"].items())
    line = (
        f"Measured on {its['cpus']} cores, Linux {its['kernel']}, Python {its['python']}: medians of "
        f"{results['rounds']} interleaved rounds; begun at {begun}. The load average was {min(loads):.1f} to "
        f"{max(loads):.1f}, of which the benchmark itself makes up to one for each worker; other processes took "
        f"{median(others):.0%} of the machine in the median run, {max(others):.0%} in the worst."
    )
    names = {
        "sh": "bare spawns of the `sh` helper a second",
        "python": "bare spawns of the Python helper a second",
        "plain": "echoes a second on a plain broker",
        "tls": "echoes a second over TLS",
    }
    rows = [
        [text, " ".join(f"{one[key]:,.0f}" for one in bare)] for key, text in names.items() if bare and key in bare[0]
    ]
    return line + "\n\n" + _table(["yardstick", "each round"], rows)


def goals(results: Results) -> str:
    """What was set as a goal, what was measured (median, lowest and highest round), and whether the median is it."""
    found = {
        (one["helper"], one["version"], one["transport"], one["signed"]): one
        for one in results.get("cases", [])
        if not one["program"] and one["loglevel"] == "warn"
    }
    rows: list[tuple[str, str, bool]] = []

    def add(goal: str, value: float | Sequence[float], shown: str, met: Callable[[float], bool]) -> None:
        if isinstance(value, Sequence):
            low, value, high = min(value), median(value), max(value)
            shown += f" ({shown.format(low)} to {shown.format(high)})"
        rows.append((goal, shown.format(value), met(value)))

    plain_1, plain_2 = found.get(("sh", 1, "plain", False)), found.get(("sh", 2, "plain", True))
    for one in (plain_1, plain_2):
        if one:
            goal = f"version {one['version']}, `sh`: at least 0.38 of bare spawning"
            add(goal, one["ratios"], "{:.3f}", lambda value: value >= 0.38)
            goal = f"version {one['version']}, `sh`: about 18,000 servers a minute"
            add(goal, [rate * 60 for rate in one["rates"]], "{:,.0f}", lambda value: value >= 18_000)
    pairs = (
        ("version 2, `sh`: TLS at least 0.9 of plain", ("sh", 2, "tls", True), plain_2),
        ("version 1, `sh`, unsigned: TLS at least 0.9 of plain", ("sh", 1, "tls", False), plain_1),
        ("version 1, `sh`, TLS with RSA signatures: at least 0.9 of plain without", ("sh", 1, "tls", True), plain_1),
    )
    for goal, key, plain in pairs:
        if key in found and plain:
            each = [one / other for one, other in zip(found[key]["rates"], plain["rates"], strict=True)]
            add(goal, each, "{:.2f}", lambda value: value >= 0.9)
    for signed, name in ((False, "no RSA signatures"), (True, "RSA signatures")):
        own = [
            one["own_cpus"] for key, one in found.items() if key[0] == "sh" and signed == (key[1:] == (1, "tls", True))
        ]
        if own:
            goal = f"`sh`, {name}: under 2 ms of our own CPU a server"
            add(goal, max(own, key=median), "{:.2f} ms", lambda value: value < 2)
    for version, signed in ((1, False), (2, True)):
        if one := found.get(("in-process", version, "plain", signed)):
            goal = f"version {version}, no process for each server: 800 a second"
            add(goal, one["rates"], "{:.0f}", lambda value: value >= 800)
    sizes = {one["servers"]: one for one in results.get("sizes", [])}
    if 10_000 in sizes:
        few, many = sizes[1000], sizes[10_000]
        add("under 150 MB with 10,000 servers", many["rss"], "{:.0f} MiB", lambda value: value < 143)
        slowest = max(few["rates"]) / min(few["rates"])
        goal = f"time a server at 10,000 by that at 1,000: within its own noise (a factor of {slowest:.2f})"
        add(goal, few["rate"] / many["rate"], "{:.2f}", lambda value: value <= slowest)
    if waiting := results.get("waiting"):
        add("a waiting server under 4 KB", _each(waiting), "{:.0f} bytes", lambda value: value < 4096)
        half = next(one for one in waiting if one["servers"] * 2 >= waiting[-1]["servers"])
        goal = f"an event at {waiting[-1]['servers']:,} servers by one at {half['servers']:,}: linear, so about 1"
        add(goal, waiting[-1]["admission"] / half["admission"], "{:.2f}", lambda value: value < 1.25)
        sweeps, idle = results["sweeps"], results["idle"]
        goal = f"discoveries of {sweeps['servers']:,} servers in one window: lost"
        add(goal, sum(sweeps["servers"] - one for one in sweeps["found"]), "{:.0f}", lambda value: value == 0)
        add("the ticker late by under 100 ms", sweeps["slip"], "{:.0f} ms", lambda value: value < 100)
        add("idle under 0.5 % of a core", idle["percent"], "{:.2f} %", lambda value: value < 0.5)
    return _table(["goal", "measured", "met"], [[goal, shown, "yes" if met else "**no**"] for goal, shown, met in rows])


def _each(waiting: Sequence[dict[str, Any]]) -> float:
    """Bytes that a waiting server takes."""
    first, last = waiting[0], waiting[-1]
    return float((last["rss"] - first["rss"]) * 1048576 / (last["servers"] - first["servers"]))


def cases(results: Results) -> str:
    rows = []
    found = results.get("cases", [])
    for case in found:
        peers = [one for one in found if one["program"] and one["transport"] == case["transport"]]
        is_peer = bool(case["program"])
        comparable = peers and not is_peer and (case["version"], case["helper"], case["loglevel"]) == (1, "sh", "warn")
        yard = "spawns" if case["helper"] in {"sh", "python"} else "echoes / 4"
        rows.append(
            [
                "Go" if is_peer else str(case["helper"]),
                str(case["version"]),
                str(case["transport"]),
                _security(case),
                str(case["loglevel"]),
                f"{case['rate']:.0f}",
                f"{case['ratio']:.2f} of {yard}" if "ratio" in case else "",
                f"{case['own_cpu']:.2f}",
                f"{case['helper_cpu']:.2f}",
                f"{case['rss']:.0f}",
                f"{case['rate'] / peers[0]['rate']:.1f}" if comparable and _same_security(case) else "",
                f"`{case['command']}`",
            ]
        )
    head = ["helper", "version", "transport", "signature", "log", "servers/s", "ratio", "own CPU, ms", "helper CPU, ms"]
    return _table([*head, "peak MiB", "times Go", "command"], rows)


def _same_security(case: dict[str, Any]) -> bool:
    return bool(case["signed"] == (case["transport"] == "tls"))


def workers(results: Results) -> str:
    rows = [
        [
            str(case["workers"]),
            str(case["transport"]),
            f"{case['rate']:.0f}",
            f"{case['ratio']:.2f}",
            f"{case['own_cpu']:.2f}",
            f"`{case['command']} --servers 600`",
        ]
        for case in results.get("workers", [])
    ]
    return _table(["workers", "transport", "servers/s", "of bare spawns", "own CPU, ms", "command"], rows)


def matrix(results: Results) -> str:
    """Each combination: servers a second by workers, and what that is of the yardstick."""
    if "matrix" not in results:
        return ""
    found: dict[tuple[Any, ...], dict[int, str]] = {}
    for one in results["matrix"]["rows"]:
        key = tuple(one[name] for name in ("helper", "version", "transport", "servers"))
        found.setdefault(key, {})[one["workers"]] = f"{one['rate']:.0f} ({one['ratio']:.2f})"
    workers = sorted({one["workers"] for one in results["matrix"]["rows"]})
    rows = [
        [str(part) for part in key[:3]] + [f"{key[3]:,}"] + [cells.get(number, "") for number in workers]
        for key, cells in found.items()
    ]
    line = f"Measured once each; others took {results['matrix']['others']:.0%} of the machine in the median run."
    return f"{line}\n\n" + _table(["helper", "version", "transport", "servers", *map(str, workers)], rows)


def sizes(results: Results) -> str:
    rows = [
        [
            f"{case['servers']:,}",
            f"{1000 / case['rate']:.2f}",
            " ".join(f"{1000 / rate:.2f}" for rate in case["rates"]),
            f"{case['own_cpu']:.2f}",
            f"{case['rss']:.0f}",
        ]
        for case in results.get("sizes", [])
    ]
    return _table(["servers", "ms a server", "each run", "own CPU, ms", "peak MiB"], rows)


def waiting(results: Results) -> str:
    found = results.get("waiting", [])
    rows = [
        [
            f"{one['servers']:,}",
            f"{one['admission']:.0f}",
            f"{one['answer']:.0f}",
            f"{one['rss']:.0f}",
            f"{one['metrics_ms']:.0f}",
            f"{one['status_ms']:.0f}",
        ]
        for one in found
    ]
    head = ["servers waiting", "µs an event", "µs an answer to discovery", "MiB", "/metrics, ms", "/status, ms"]
    text = _table(head, rows)
    if len(found) > 1:
        text += f"\nEach waiting server takes {_each(found):.0f} bytes.\n"
    if "sweeps" in results:
        sweeps, idle = results["sweeps"], results["idle"]
        text += (
            f"\n{len(sweeps['found'])} discoveries answered by {sweeps['servers']:,} servers each: found "
            f"{', '.join(f'{found:,}' for found in sweeps['found'])}. The ticker was late by {sweeps['slip']:.0f} ms "
            f"at most, a page took {sweeps['page']:.0f} ms at most meanwhile.\n\n"
            f"Idle: {idle['percent']:.2f} % of a core, {idle['wakeups']:.1f} wake-ups a second, "
            f"{idle['rss']:.0f} MiB.\n"
        )
    return text


SECTIONS: dict[str, Callable[[Results], str]] = {
    "machine": machine,
    "goals": goals,
    "cases": cases,
    "workers": workers,
    "matrix": matrix,
    "sizes": sizes,
    "waiting": waiting,
}


def text(results: Results) -> str:
    """All tables, for a terminal."""
    return "\n".join(section(results) for section in SECTIONS.values())


def write(results: Results) -> None:
    """Fills the page and draws the plots."""
    PLOTS.mkdir(exist_ok=True)
    page = PAGE.read_text()
    PAGE.write_text(_MARK.sub(lambda found: found[1] + "\n" + SECTIONS[found[2]](results) + "\n" + found[3], page))
    if found := results.get("workers"):
        series = {
            name: [(one["workers"], one["rate"]) for one in found if one["transport"] == name]
            for name in ("plain", "tls")
        }
        _plot("workers", "Workers", "servers a second", series, logarithmic=True)
    if found := results.get("sizes"):
        series = {"median": [(one["servers"], 1000 / one["rate"]) for one in found]}
        series["fastest"] = [(one["servers"], 1000 / max(one["rates"])) for one in found]
        series["slowest"] = [(one["servers"], 1000 / min(one["rates"])) for one in found]
        _plot("sizes", "Servers in the fleet", "milliseconds a server", series, logarithmic=True)
    if found := results.get("waiting"):
        _plot("waiting-memory", "Servers waiting", "MiB", {"RSS": [(one["servers"], one["rss"]) for one in found]})
        series = {
            "event": [(one["servers"], one["admission"]) for one in found],
            "answer to discovery": [(one["servers"], one["answer"]) for one in found],
        }
        _plot("waiting-time", "Servers waiting", "µs of CPU for each", series)


_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 640, 320, 64, 48, 16, 140
_COLOURS = ("#1f77b4", "#d62728", "#7f7f7f")


def _plot(
    name: str, x_name: str, y_name: str, series: dict[str, list[tuple[float, float]]], *, logarithmic: bool = False
) -> None:
    """Lines over a horizontal axis that is linear, or has the points at equal distances (``logarithmic``)."""
    places = sorted({x for points in series.values() for x, _ in points})
    top = max(y for points in series.values() for _, y in points) * 1.1 or 1.0
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def at(x: float, y: float) -> tuple[float, float]:
        part = places.index(x) / max(len(places) - 1, 1) if logarithmic else x / places[-1]
        return _LEFT + part * width, _TOP + height * (1 - y / top)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}">',
        '<g font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<path d="M{_LEFT} {_TOP}V{_TOP + height}H{_LEFT + width}" stroke="black" fill="none"/>',
        f'<text x="{_LEFT + width / 2}" y="{_HEIGHT - 8}" text-anchor="middle">{x_name}</text>',
        f'<text transform="translate(14 {_TOP + height / 2}) rotate(-90)" text-anchor="middle">{y_name}</text>',
    ]
    lines += [
        f'<text x="{at(x, 0)[0]:.1f}" y="{_TOP + height + 16}" text-anchor="middle">{x:,.0f}</text>' for x in places
    ]
    for part in range(5):
        value = top * part / 4
        y = at(places[0], value)[1]
        label = f"{value:,.0f}" if top > 10 else f"{value:.1f}"
        lines.append(f'<path d="M{_LEFT} {y:.1f}h{width}" stroke="#ddd"/>')
        lines.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    for number, (label, points) in enumerate(series.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        placed = [at(x, y) for x, y in points]
        lines.append(
            f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in placed)}" stroke="{colour}" '
            'stroke-width="2" fill="none"/>'
        )
        lines += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in placed]
        lines.append(f'<text x="{_LEFT + width + 10}" y="{_TOP + 16 + 18 * number}" fill="{colour}">{label}</text>')
    (PLOTS / f"{name}.svg").write_text("\n".join([*lines, "</g>", "</svg>", ""]))


if __name__ == "__main__":
    write(json.loads((Path(__file__).parent / "results.json").read_text()))
