"""``choria-provisioner status``: who waits and why, from the page of the running daemon."""

import argparse
import http.client
import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from provisioner import strictjson
from provisioner.cli.screen import age, printing
from provisioner.config_keys import KEYS
from provisioner.errors import EXIT_FINDING, EXIT_OK, BadReply, ConfigError, ConnectionLost, Fault
from provisioner.keys import read_keys
from provisioner.printable import escaped
from provisioner.strictyaml import NotYAML, load

TIMEOUT = 5.0
"""Seconds for one look at the page."""

MAX_BYTES = 8 << 20
"""Of an answer; the largest that a daemon gives is well under one MiB."""

EVERY = 1.0
"""Seconds between two looks of the live table."""

Status = Mapping[str, Any]


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--config", type=Path, metavar="FILE", help="the daemon's YAML file, for its monitor_port")
    where.add_argument("--url", help="the daemon's page instead, such as http://127.0.0.1:9110")
    parser.add_argument("--json", action="store_true", help="print what the page /status says, and nothing else")
    parser.add_argument("--once", action="store_true", help="print once, also on a terminal")
    parser.add_argument("server", nargs="?", metavar="SERVER", help="only this server: its state and last outcome")


def main(arguments: argparse.Namespace) -> int:
    """Shows the state of a daemon: a live table on a terminal, plain lines elsewhere.

    Returns:
        0; 1 when the one server asked for is unknown to the daemon.

    Raises:
        ConfigError: no page can be made out, or what is there is none.
        ConnectionLost: nobody answers there.
    """
    url = arguments.url.rstrip("/") if arguments.url else page_of(arguments.config)
    with printing():
        if arguments.server:
            return _one_server(url, arguments.server, as_json=arguments.json)
        if arguments.json:
            print(json.dumps(fetch(url), indent=2))
        elif sys.stdout.isatty() and not arguments.once:
            _live(url)
        else:
            print("\n".join(plain(fetch(url))))
    return EXIT_OK


def page_of(config: Path) -> str:
    """The base URL of the daemon that runs on this machine with this file.

    Raises:
        ConfigError: the file can't be read, or sets no ``monitor_port``.
    """
    try:
        tree = load(config.read_bytes().decode())
    except OSError as error:
        raise ConfigError([Fault(str(config), "", f"can't be read: {error.strerror}")]) from None
    except (UnicodeDecodeError, NotYAML) as error:
        raise ConfigError([Fault(str(config), "", f"can't be read as YAML: {error}")]) from None
    reading = read_keys(tree, [key for key in KEYS if key.name == "monitor_port"], str(config))
    if reading.faults:
        raise ConfigError(reading.faults)
    if not reading.values["monitor_port"]:
        problem = "is not set, so the daemon has no page to ask; set it and restart the daemon, or use --url"
        raise ConfigError([Fault(str(config), "monitor_port", problem)])
    return f"http://127.0.0.1:{reading.values['monitor_port']}"


def fetch(url: str, query: str = "") -> Status:
    """What the daemon's ``/status`` says.

    Raises:
        ConfigError: that isn't the page of a daemon, or it isn't for us.
        ConnectionLost: nobody answers.
        BadReply: the answer is no JSON object.
    """
    if urlsplit(url).scheme not in {"http", "https"}:
        raise ConfigError([Fault("--url", "", "must be such as http://127.0.0.1:9110", escaped(url, 100))])
    address = f"{url}/status{query}"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(address, timeout=TIMEOUT) as answer:
            data = answer.read(MAX_BYTES + 1)
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.FORBIDDEN:
            problem = "shows servers to its own machine only; ask there, or set status_listen: all"
        else:
            problem = f"is no page of a choria-provisioner: it answers {error.code}"
        raise ConfigError([Fault(address, "", problem)]) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        text = getattr(reason, "strerror", None) or escaped(str(reason), 200)
        raise ConnectionLost(f"{url} does not answer: {text}. Is the daemon running, with this monitor_port?") from None
    try:
        found = strictjson.loads(data[:MAX_BYTES])
    except strictjson.NotJSON as error:
        raise BadReply(f"{address} is not the page of a choria-provisioner: {error}") from None
    if not isinstance(found, dict) or "version" not in found:
        raise BadReply(f"{address} is not the page of a choria-provisioner")
    return found


# --- one server -----------------------------------------------------------------------------------------------------


def _one_server(url: str, identity: str, *, as_json: bool) -> int:
    found = fetch(url, f"?server={quote(identity, safe='')}").get("server", {})
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        last = found.get("last")
        print(f"{_text(identity)}: {found.get('state', 'unknown')}")
        if last:
            print(_outcome_line(last, time.time()))
    return EXIT_OK if found.get("last") or found.get("state") != "unknown" else EXIT_FINDING


# --- plain ----------------------------------------------------------------------------------------------------------


def summary(status: Status) -> list[str]:
    """The lines above the lists: who, in what role, connected or not, how many servers, how they ended."""
    link = f"connected to {_text(status['broker'])}"
    if not status["connected"]:
        link = f"not connected: {_text(status['connection_error'] or 'no broker has answered yet')}"
    role = _text(status["role"]) + (f", {_text(status['election'])}" if status["election"] else "")
    servers = status["servers"]
    counts = ", ".join(f"{servers[name]} {name}" for name in ("waiting", "working", "resting"))
    ends = ", ".join(f"{count} {_text(word)}" for word, count in status["outcomes"].items()) or "none yet"
    turned_away = ", ".join(f"{n} {_text(word)}" for word, n in status["refused_sightings"].items() if n)
    lines = [
        f"provisioner  {_text(status['identity'])} {_text(status['version'])}"
        + (f", site {_text(status['site'])}" if status["site"] else ""),
        (
            f"running for  {age(status['now'] - status['started_at'])}, {status['workers']} workers, "
            f"discovery every {age(status['interval'])}"
        ),
        f"role         {role}{', paused' if status['paused'] else ''}",
        f"broker       {link}",
        f"servers      {counts}",
        f"outcomes     {ends}",
    ]
    return lines + ([f"turned away  {turned_away}"] if turned_away else [])


def plain(status: Status) -> list[str]:
    """The whole of a status, one line a thing, never broken."""
    now = status["now"]
    lines = summary(status)
    for title, rows in _lists(status):
        lines += ["", title, *("  " + "  ".join(row).rstrip() for row in _columns(rows))]
    lines += ["", "last outcomes, newest first"]
    lines += ["  " + _outcome_line(one, now) for one in reversed(status["recent"])] or ["  none yet"]
    return lines


def _outcome_line(one: Mapping[str, Any], now: float) -> str:
    parts = [_text(part) for part in (one["step"], one["text"], one["reason"]) if part]
    return f"{age(now - one['at'])} ago  {_text(one['identity'])}  {_text(one['outcome'])}" + (
        f"  {': '.join(parts)}" if parts else ""
    )


def _lists(status: Status) -> Iterable[tuple[str, list[tuple[str, ...]]]]:
    work = [(one["identity"], age(one["age"]), one["step"], age(one["step_age"])) for one in status["at_work"]]
    yield "at work (server, age, step, its age)", [tuple(map(_text, row)) for row in work] or [("nobody",)]
    waiting = [(one["identity"], age(one["age"]), one["source"], one["last"]) for one in status["waiting"]]
    shown, count = len(waiting), status["servers"]["waiting"]
    more = [(f"and {count - shown} more",)] if count > shown else []
    rows = [tuple(map(_text, row)) for row in waiting]
    yield "waiting (server, age, noticed by, last outcome)", [*rows, *more] or [("nobody",)]


def _columns(rows: Sequence[tuple[str, ...]]) -> list[list[str]]:
    widths = [max((len(row[i]) for row in rows if i < len(row)), default=0) for i in range(4)]
    return [[cell.ljust(width) for cell, width in zip(row, widths, strict=False)] for row in rows]


def _text(value: object) -> str:
    return escaped(str(value), 400)


# --- live -----------------------------------------------------------------------------------------------------------


def _live(url: str) -> None:
    """Until interrupted. One thread fetches and draws: a slow terminal only makes the looks rarer."""
    console = Console(highlight=False)
    status = fetch(url)
    trouble = ""
    with Live(console=console, auto_refresh=False) as live:
        try:
            while True:
                live.update(table(status, console.height, trouble), refresh=True)
                time.sleep(EVERY)
                try:
                    status, trouble = fetch(url), ""
                except (ConfigError, ConnectionLost, BadReply) as error:
                    trouble = f"{datetime.now(UTC):%H:%M:%S}Z {error}"
        except KeyboardInterrupt:
            return


def table(status: Status, height: int, trouble: str = "") -> Group:
    """A status within a terminal's height: each list gets a share of what the summary leaves."""
    head = summary(status)
    room = max(2, (height - len(head) - 9) // 3)
    parts: list[Text | Table] = [Text(line, no_wrap=True, overflow="ellipsis") for line in head]
    if trouble:
        parts.append(Text(trouble, style="red"))
    now = status["now"]
    work = [(one["identity"], age(one["age"]), one["step"], age(one["step_age"])) for one in status["at_work"]]
    parts.append(_table(("at work", "age", "step", "its age"), work, room))
    waiting = [(one["identity"], age(one["age"]), one["source"], one["last"]) for one in status["waiting"]]
    parts.append(_table(("waiting", "age", "noticed by", "last outcome"), waiting, room, status["servers"]["waiting"]))
    recent = [
        (one["identity"], age(now - one["at"]), one["outcome"], one["text"]) for one in reversed(status["recent"])
    ]
    parts.append(_table(("last outcomes", "ago", "outcome", ""), recent, room))
    return Group(*parts)


def _table(titles: tuple[str, ...], rows: Sequence[tuple[str, ...]], room: int, count: int = 0) -> Table:
    made = Table(box=None, pad_edge=False, expand=True)
    for number, title in enumerate(titles):
        narrow = number in {1, 2} or title in {"its age", "last outcome"}
        made.add_column(title, no_wrap=True, overflow="ellipsis", justify="left", min_width=7 if narrow else 10,
                        ratio=None if narrow else 1)  # fmt: skip
    for row in rows[:room]:
        made.add_row(*(Text(_text(cell)) for cell in row))
    left = max(count, len(rows)) - min(room, len(rows))
    if left:
        made.add_row(Text(f"and {left} more", style="dim"))
    return made
