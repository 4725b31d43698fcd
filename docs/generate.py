"""Fills the tables of the documentation from the code: ``python docs/generate.py``. A test compares page and code.

A table stands between ``<!-- generated: NAME -->`` and ``<!-- end -->``.
"""

import argparse
import ast
import importlib
import pkgutil
import re
import sys
import textwrap
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

import provisioner
from provisioner import service
from provisioner.bus.memory import MemoryBroker
from provisioner.choria.settings import known_keys
from provisioner.cli.program import Program
from provisioner.config_keys import DEAD, KEYS
from provisioner.cycle import calls, steps
from provisioner.cycle.outcome import KINDS
from provisioner.errors import EXIT_CODES, ProvisionerError
from provisioner.grants import metrics as grants
from provisioner.grants.report import Report
from provisioner.metrics import REFUSALS, Metrics
from provisioner.registry.serve import Service

DOCS = Path(__file__).parent
ROOT = DOCS.parent
MARKED = re.compile(r"(<!-- generated: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)

REFERENCE_KEYS = frozenset(
    {
        "workers", "interval", "helper", "token", "site", "lifecycle_component", "logfile", "loglevel",
        "choria_insecure", "monitor_port", "broker_provisioning_password", "cert_deny_list", "jwt_verify_cert",
        "jwt_signing_key", "jwt_signing_token", "server_jwt_validity", "upgrades_repository", "upgrades_optional",
        "leader_election", "features.jwt", "features.pki", "features.ed25519",
        "features.upgrades",
    }
)  # fmt: skip
"""The keys that the Go program reads too (wire-protocol 11.6)."""


def programs() -> list[Program]:
    """The console programs that installing the package gives."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    modules = (importlib.import_module(target.partition(":")[0]) for target in scripts.values())
    return [module.PROGRAM for module in modules]


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    titles = list(head)
    lines = [titles, ["---"] * len(titles), *rows]
    return (
        "\n" + "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines) + "\n"
    )


def keys() -> str:
    """Every key of the YAML file."""
    return table(
        ("key", "must be", "default", "what it does", "SIGHUP", "Go"),
        (
            (
                f"`{key.name}`",
                key.allowed + (" (secret)" if key.secret else ""),
                "**required**" if key.required else key.default_text,
                key.doc,
                "yes" if key.reload else "restart",
                "yes" if key.name in REFERENCE_KEYS else "",
            )
            for key in KEYS
        ),
    )


def dead_keys() -> str:
    """Keys that nothing reads."""
    return table(("key", "what is said"), ((f"`{name}`", said) for name, said in DEAD.items()))


def metrics() -> str:
    """Every metric of ``choria-provisioner``, as its registry has them."""
    return _metrics(Metrics(CollectorRegistry(), "london").registry)


def mesh_metrics() -> str:
    """Every metric of ``mesh-provisioner``, beside those of its process."""
    registry = CollectorRegistry()
    bus = MemoryBroker().connect()
    Service(bus, registry)
    return _metrics(registry)


def postgres_metrics() -> str:
    """Every metric of ``postgres-provisioner``; it has run once, as some series begin with the first run."""
    made = grants.Metrics(CollectorRegistry(), "database")
    made.told(Report("database"))
    return _metrics(made.registry)


def _metrics(registry: CollectorRegistry) -> str:
    rows = []
    for family in registry.collect():
        labels = sorted({name for sample in family.samples for name in sample.labels} - {"le"})
        rows.append((f"`{family.name}`", family.type, ", ".join(f"`{name}`" for name in labels), family.documentation))
    return table(("metric", "type", "labels", "what it tells"), rows)


def reasons() -> str:
    """Every way in which a cycle ends."""
    return table(
        ("word", "error", "what happened", "what to do"),
        ((f"`{word}`", "yes" if kind.error else "", kind.cause, kind.cure) for word, kind in KINDS.items()),
    )


def exit_codes() -> str:
    """Exit codes of all programs."""
    return table(("code", "meaning"), ((f"`{code}`", meaning) for code, meaning in EXIT_CODES.items()))


def flags() -> str:
    """Every flag of every command of every program."""
    parts = []
    for program in programs():
        for command in program.commands:
            default = " (the default: the word may be left out)" if command.name == program.default else ""
            parts.append(f"\n### `{program.name} {command.name}`{default}\n\n{command.summary[0].upper()}")
            parts.append(command.summary[1:] + ".\n")
            if command.example:
                parts.append(f"\n```sh\n{command.example}\n```\n")
            parts.append(table(("flag", "what it does"), _flags(program.parser(command))))
    return "".join(parts)


def _flags(parser: argparse.ArgumentParser) -> Iterable[tuple[str, str]]:
    for action in parser._actions:  # noqa: SLF001 - argparse has no other way to ask
        if action.help == argparse.SUPPRESS:
            continue
        name = ", ".join(f"`{each}`" for each in action.option_strings) or f"`{action.metavar or action.dest}`"
        if action.option_strings and action.nargs != 0:
            name += f" `{action.metavar or action.dest.upper()}`"
        said = (action.help or "").replace("%(default)s", str(action.default))
        yield name, said + (" (required)" if action.required and action.option_strings else "")


def settings() -> str:
    """Every key of ``choria.cfg`` that is read."""
    return "\n" + ", ".join(f"`{name}`" for name in sorted(known_keys())) + "\n\n"


def errors() -> str:
    """Every error of the package: its class, its reason word, what it means."""
    for module in pkgutil.walk_packages(provisioner.__path__, "provisioner."):
        importlib.import_module(module.name)
    rows = {}
    waiting: list[type[ProvisionerError]] = [ProvisionerError]
    while waiting:
        error = waiting.pop()
        waiting += error.__subclasses__()
        if error.__module__.startswith("provisioner."):
            said = " ".join((error.__doc__ or "").split("\n\n")[0].split()).replace("``", "`")
            rows[error.__name__] = (f"`{error.__name__}`", f"`{error.reason}`", f"`{error.__module__}`", said)
    return table(("error", "reason", "where", "what it means"), (rows[name] for name in sorted(rows)))


def refusals() -> str:
    """Why a sighting is turned away."""
    return "\n" + ", ".join(f"`{word}`" for word in REFUSALS) + "\n\n"


def nursery_tree() -> str:
    """Who runs inside whom, as ``provisioner/service.py`` draws it; a test compares the drawing with its tasks."""
    drawing = (service.__doc__ or "").partition("\n\n")[2].partition("\n\n")[0]
    return f"\n```text\n{textwrap.dedent(drawing)}\n```\n\n"


def walk() -> str:
    """The walk of one server, from ``provisioner/cycle/steps.py``: each step, when it is taken, what is called."""
    source = ast.parse(Path(steps.__file__).read_text())
    (cycle,) = (node for node in source.body if isinstance(node, ast.ClassDef) and node.name == "Cycle")
    methods = {node.name: node for node in cycle.body if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef)}
    rows = []
    for statement in methods["run"].body:
        when = ""
        for node in ast.walk(statement):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in {f"self.{name}" for name in methods}:
                if isinstance(statement, ast.If):
                    when = f"`{ast.unparse(statement.test).partition(' and await ')[0]}`"
                method = methods[node.attr]
                said = (ast.get_docstring(method) or "").partition("\n")[0].replace("``", "`")
                rows.append((_step(method), when, _called(method, methods), said))
    numbered = ((str(number), *row) for number, row in enumerate(rows, 1))
    return table(("", "step", "only if", "call", "what it is for"), numbered)


def _step(method: ast.AST) -> str:
    """The name that a method gives its step, such as ``Fetching JWT``."""
    for node in ast.walk(method):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "_begin":
            return str(ast.literal_eval(node.args[0]))
    return "(deciding what is written)"


def _called(method: ast.AST, methods: dict[str, Any]) -> str:
    """The RPC action that a method calls, itself or by another one of its class."""
    for node in ast.walk(method):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "calls":
            call = getattr(calls, node.attr)
            return f"`{call.agent}#{call.name}`"
        if isinstance(node, ast.Attribute) and node.attr.startswith("_start_") and node.attr in methods:
            return _called(methods[node.attr], methods)
    return ""


def embedded() -> str:
    """The example of a program that embeds the provisioner, as it is run by a test."""
    return f"\n```python\n{(DOCS / 'examples' / 'embedded.py').read_text()}```\n\n"


TABLES: dict[str, Callable[[], str]] = {
    "embedded": embedded,
    "errors": errors,
    "nursery-tree": nursery_tree,
    "refusals": refusals,
    "settings": settings,
    "walk": walk,
    "keys": keys,
    "dead-keys": dead_keys,
    "metrics": metrics,
    "mesh-metrics": mesh_metrics,
    "postgres-metrics": postgres_metrics,
    "reasons": reasons,
    "exit-codes": exit_codes,
    "flags": flags,
}


def filled(page: str) -> str:
    """The text of a page with each of its tables made anew."""
    return MARKED.sub(lambda found: found[1] + TABLES[found[2]]() + found[3], page)


def main() -> int:
    """Rewrites each page whose tables are out of date; tells which."""
    for path in sorted(DOCS.glob("*.md")):
        old = path.read_text()
        new = filled(old)
        if new != old:
            path.write_text(new)
            print(f"{path}: written anew")
    return 0


if __name__ == "__main__":
    sys.exit(main())
