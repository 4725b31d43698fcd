"""``mesh-provisioner ask``: one question, all its pages, as a table, as plain lines or as JSON."""

import argparse
import sys
from collections.abc import Callable
from typing import Any

import trio

from provisioner import strictjson
from provisioner.cli import mesh_connection
from provisioner.cli.logs import Logs
from provisioner.errors import (
    EXIT_FINDING,
    EXIT_OK,
    EXIT_REFUSED,
    EXIT_UNREACHABLE,
    ConnectionLost,
    PermissionDenied,
    RegistryError,
)
from provisioner.printable import escaped
from provisioner.registry.answer import BAD_REQUEST, UNAVAILABLE, narrowed
from provisioner.registry.client import ANSWER_TIMEOUT, Page, ask
from provisioner.registry.keys import REGISTRY, SHAPES

CONNECT_TIMEOUT = 5.0
"""Seconds until there must be a connection."""

_CODES = {BAD_REQUEST: EXIT_REFUSED, UNAVAILABLE: EXIT_UNREACHABLE}
"""Exit codes of the errors that the service answers with; any other is a failure of the service's own."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    parser.add_argument(
        "what", nargs="?", default=REGISTRY.what, choices=list(SHAPES), help="which bucket (default: %(default)s)"
    )
    parser.add_argument("--node", metavar="NAME", help="only this node")
    parser.add_argument("--module", metavar="NAME", help="only this module; of a collection: this contributor")
    parser.add_argument("--collection", metavar="NAME", help="only this collection")
    parser.add_argument("--json", action="store_true", help="print the answer's JSON and nothing else")
    mesh_connection.configure(parser)


def main(arguments: argparse.Namespace) -> int:
    """Asks and prints."""
    narrowing = {
        word: value for word in ("node", "module", "collection") if (value := getattr(arguments, word)) is not None
    }
    bus = mesh_connection.open_bus(arguments, "mesh-provisioner ask")

    async def question() -> Page:
        async with bus as connection:
            with trio.move_on_after(CONNECT_TIMEOUT):
                await connection.wait_connected()
            if not connection.connected:
                raise ConnectionLost(f"not connected within {CONNECT_TIMEOUT:g} s: {connection.last_error}")
            return await ask(connection, arguments.what, timeout=ANSWER_TIMEOUT, **narrowing)

    try:
        narrowed(SHAPES[arguments.what], narrowing)  # refused here, a wrong question needs no server
        with Logs("mesh-provisioner", "error", "stderr", debug=arguments.debug):
            page = trio.run(question)
    except RegistryError as error:
        if arguments.json:
            print(strictjson.dumps({"error": {"code": error.code, "message": str(error)}}))
        print(f"mesh-provisioner: {error.code}: {escaped(str(error))}", file=sys.stderr)
        return _CODES.get(error.code, EXIT_FINDING)
    except PermissionDenied as error:
        print(f"mesh-provisioner: the account may not ask: {escaped(str(error))}", file=sys.stderr)
        return EXIT_REFUSED
    if arguments.json:
        print(strictjson.dumps(page.as_json()))
    elif sys.stdout.isatty():
        _table(page)
    else:
        _lines(page, print)
    return EXIT_OK


def _cells(page: Page, row: dict[str, Any]) -> list[str]:
    names = [str(row.get(field)) for field in SHAPES[page.what].fields]
    return [escaped(cell) for cell in (*names, str(row["revision"]), strictjson.dumps(row.get("value")))]


def _lines(page: Page, out: Callable[[str], object]) -> None:
    """One line an item: names, revision, value, with tabs between; what is out of shape goes to standard error."""
    for row in page.items:
        out("\t".join(_cells(page, row)))
    for kind, bad in _bad(page):
        print(f"mesh-provisioner: bad {kind}: {bad['key']!r}: {escaped(str(bad.get('why')))}", file=sys.stderr)


def _bad(page: Page) -> list[tuple[str, dict[str, Any]]]:
    return [("key", bad) for bad in page.bad_keys] + [("value", bad) for bad in page.bad_values]


def _table(page: Page) -> None:
    # Imported here: `--json` in a script does without it.
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = Console()
    table = Table(*SHAPES[page.what].fields, "revision", "value", title=page.what)
    for row in page.items:
        table.add_row(*(Text(cell, overflow="fold") for cell in _cells(page, row)))
    console.print(table)
    if bad := _bad(page):
        faults = Table("bad", "key", "why", title="out of shape")
        for kind, row in bad:
            faults.add_row(kind, Text(escaped(row["key"]), overflow="fold"), Text(escaped(str(row.get("why")))))
        console.print(faults)
    console.print(Text(f"{len(page.items)} items, as of sequence {page.sequence}"))
