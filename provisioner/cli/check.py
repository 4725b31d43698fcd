"""``choria-provisioner check``: finds what is wrong before it bites, and says what to do about it."""

import argparse
import json
import logging
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import trio
from attrs import asdict

from provisioner.cli import findings
from provisioner.cli.comparison import compare
from provisioner.cli.connection import add_wait
from provisioner.cli.findings import Finding
from provisioner.cli.screen import printing, terminal_width, wrapped
from provisioner.errors import EXIT_FINDING, EXIT_OK, EXIT_REFUSED
from provisioner.printable import escaped


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    parser.description = (
        "Looks at the configuration, the files it names, keys, tokens and their dates, the helper and the broker, and "
        "prints a line for each: ok, warn or fail, with what to do. Run it as the user that the daemon runs as. It "
        "changes nothing, but it runs the helper once, on a sample. Exit code 2 with a failure, 1 with a warning and "
        "--strict, else 0."
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--config", type=Path, metavar="FILE", help="the provisioner's YAML file")
    which.add_argument(
        "--compare",
        type=Path,
        metavar="FILE",
        help="a file of the Go program's instead: list each key whose meaning or default differs here",
    )
    parser.add_argument("--choria-config", type=Path, metavar="FILE", help="the Choria client configuration, as in run")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--strict", action="store_true", help="exit code 1 if there is a warning")
    parser.add_argument("--no-helper", action="store_true", help="don't run the helper")
    parser.add_argument("--offline", action="store_true", help="don't connect to the broker")
    add_wait(parser)


def main(arguments: argparse.Namespace) -> int:
    """Runs the command.

    Returns:
        0; 1 with a warning and ``--strict``; 2 with a failure.
    """
    if not arguments.debug:
        logging.getLogger("provisioner").addHandler(logging.NullHandler())  # all is told by the findings
    found = compare(arguments.compare) if arguments.compare else _look(arguments)
    counts = Counter(finding.level for finding in found)
    with printing():
        if arguments.json:
            told = {"findings": [asdict(finding) for finding in found]}
            print(json.dumps(told | {level: counts[level] for level in ("ok", "warn", "fail")}, indent=2))
        else:
            for line in lines(found, terminal_width()):
                print(line)
            print(f"{counts['ok']} ok, {counts['warn']} warnings, {counts['fail']} failures")
    if counts["fail"]:
        return EXIT_REFUSED
    return EXIT_FINDING if counts["warn"] and arguments.strict else EXIT_OK


def _look(arguments: argparse.Namespace) -> list[Finding]:
    now = time.time()
    found, config = findings.configuration(arguments.config)
    more, settings = findings.choria(arguments.choria_config)
    found += more
    if config is None:
        return found
    found += findings.trust(config, now=now)
    usable = None
    if settings is not None:
        own = findings.credentials(config, settings, now=now)
        found += own
        if not arguments.offline and not any(each.level == "fail" for each in own):
            usable = settings
    found += trio.run(
        partial(findings.gather, config, usable, run_the_helper=not arguments.no_helper, wait=arguments.wait)
    )
    if settings is not None and usable is None and not arguments.offline:
        found.append(Finding("warn", "broker", "not asked: our own credential can't be used", "correct that first"))
    return found


def lines(found: Sequence[Finding], width: int | None) -> Iterator[str]:
    """Each finding and what to do about it; in a pipe both on one line, to be searched in."""
    for finding in found:
        text = escaped(f"{finding.subject}: {finding.text}")
        if width is None:
            yield f"{finding.level:<5} {text}{f' -> {escaped(finding.do)}' if finding.do else ''}"
            continue
        yield f"{finding.level:<5} {wrapped(text, 6, width)}"
        if finding.do:
            yield f"      -> {wrapped(escaped(finding.do), 9, width)}"
