"""The walls of the house, read from the syntax tree: who may import whom, and what each room must not touch."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "provisioner"

BOTTOM = (
    "config config_keys keys errors metrics strictjson strictyaml secret printable seldom command durations version"
)
ROWS: tuple[frozenset[str], ...] = tuple(
    frozenset(row.split())
    for row in (
        "cli",
        "service simulator grants registry testing audit",
        "notice fleet leader status page",
        "cycle monitor broker",
        "helper trust rpc connect",
        "choria bus",
        BOTTOM,
    )
)
"""From the top down. A room imports from rows below its own, and never from a neighbour in its own row; only in the
bottom row, whose modules anybody may use, neighbours may import one another."""

PURE = (
    "choria", "trust", "errors", "keys", "config_keys", "strictjson", "strictyaml", "secret", "printable",
    "durations", "version", "cycle.outcome", "cycle.facts", "cycle.version", "cycle.delivery", "helper.contract",
    "fleet.roster", "leader.election", "grants.manifest", "grants.naming", "grants.plan", "grants.scram",
    "grants.steps", "registry.keys", "registry.table", "registry.diff", "registry.answer", "registry.rows",
)  # fmt: skip
"""Rooms and modules that do no I/O: neither these libraries nor these functions."""

IMPURE = frozenset(
    {
        "trio", "asyncio", "nats", "trio_asyncio", "socket", "ssl", "subprocess", "select", "selectors", "os", "shutil",
        "tempfile", "signal", "threading", "multiprocessing", "http", "urllib.request", "psycopg", "prometheus_client",
    }
)  # fmt: skip
IMPURE_CALLS = frozenset({"open", "input", "print", "exec", "eval", "compile", "__import__"})

KEPT_IN: dict[str, tuple[str, ...]] = {
    "nats": ("bus.nats", "bus.nats_client"),
    "trio_asyncio": ("bus.nats", "bus.nats_client"),
    "asyncio": ("bus.nats", "bus.nats_client"),
    # The simulated servers make keys and signing requests: they play the other side.
    "cryptography": ("trust", "choria.security", "simulator.keys"),
    "nacl": ("trust", "choria.security", "simulator.keys"),
    "jwt": ("trust", "choria.security", "simulator.keys"),
    "yaml": ("strictyaml",),
    "re2": ("choria.filter", "trust", "config_keys"),
    "h11": ("monitor",),
    "dns": ("broker.servers",),
    "psycopg": ("grants", "cli.postgres_demo"),
    "argparse": ("cli", "simulator.command"),
    "prometheus_client": ("metrics", "monitor", "service", "grants", "registry", "cli", "simulator", "testing"),
}
"""Libraries that stand behind one wall."""

MAX_LINES = 400
LONGER: dict[str, int] = {}
"""Modules that are over ``MAX_LINES``, and how far: a debt, not a licence."""

BROAD = {
    "bus.link": "the edge of one event",
    "bus.watch": "the edge of one event",
    "bus.background": "raises it again",
    "bus.nats": "the edge of one connection attempt",
    "fleet.crew": "the edge of one server's cycle",
    "registry.verb": "the edge of one question",
    "cli.program": "the end of the process",
}
"""Where ``except Exception`` or broader may stand without raising it again."""


@cache
def modules() -> dict[str, ast.Module]:
    """Every module of the package by its dotted name without ``provisioner.``; the package itself is ``""``."""
    return {_name(path): ast.parse(path.read_text(), str(path)) for path in sorted(PACKAGE.rglob("*.py"))}


def _name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node but what stands under ``if TYPE_CHECKING``: that is never run."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            continue
        yield child
        yield from _nodes(child)


def imports(name: str) -> set[str]:
    """Dotted names of all that a module imports; of ``from a import b`` both ``a`` and ``a.b``."""
    found = set()
    for node in _nodes(modules()[name]):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports relatively"
            assert node.module is not None
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def inside(name: str, places: tuple[str, ...]) -> bool:
    return any(name == place or name.startswith(place + ".") for place in places)


def row_of(room: str) -> int:
    return next(number for number, row in enumerate(ROWS) if room in row)


def rooms_used(name: str) -> set[str]:
    ours = {each.split(".")[1] for each in imports(name) if each.startswith("provisioner.")}
    return {room for room in ours if room in {module.split(".")[0] for module in modules()}}


@pytest.mark.parametrize("room", sorted({name.split(".")[0] for name in modules() if name}))
def test_every_room_has_its_row(room: str) -> None:
    assert [room in row for row in ROWS].count(True) == 1


@pytest.mark.parametrize("name", [name for name in modules() if name])
def test_imports_go_downwards_only(name: str) -> None:
    room = name.split(".", maxsplit=1)[0]
    bottom = len(ROWS) - 1
    for used in rooms_used(name) - {room}:
        assert row_of(used) > row_of(room) or row_of(used) == row_of(room) == bottom, f"{name} must not import {used}"


@pytest.mark.parametrize("name", [name for name in modules() if inside(name, PURE)])
def test_pure_rooms_do_no_io(name: str) -> None:
    assert not {each for each in imports(name) if each in IMPURE or each.split(".")[0] in IMPURE}
    called = {
        node.func.id
        for node in _nodes(modules()[name])
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not called & IMPURE_CALLS


@pytest.mark.parametrize("library", KEPT_IN)
def test_a_library_stays_behind_its_wall(library: str) -> None:
    users = {name for name in modules() if any(each.split(".")[0] == library for each in imports(name))}
    assert {name for name in users if not inside(name, KEPT_IN[library])} == set()


@pytest.mark.parametrize("name", modules())
def test_no_module_is_too_long(name: str) -> None:
    path = PACKAGE.joinpath(*name.split(".")) if name else PACKAGE
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    assert len(file.read_text().splitlines()) <= LONGER.get(name, MAX_LINES)


@pytest.mark.parametrize("name", modules())
def test_no_state_at_module_level(name: str) -> None:
    assert not [node for node in ast.walk(modules()[name]) if isinstance(node, ast.Global)]
    mutable = ast.Dict | ast.List | ast.Set | ast.DictComp | ast.ListComp | ast.SetComp
    for node in modules()[name].body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, mutable):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                assert isinstance(target, ast.Name)
                assert target.id.isupper() or target.id == "__all__", f"{target.id} must be a constant, in capitals"


def _broad(handler: ast.ExceptHandler) -> bool:
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    names = {each.id if isinstance(each, ast.Name) else "" if each else "BaseException" for each in caught}
    raised_again = any(isinstance(node, ast.Raise) and node.exc is None for node in ast.walk(handler))
    return bool(names & {"Exception", "BaseException"}) and not raised_again


def test_broad_handlers_stand_at_the_edges_only() -> None:
    found = {
        name
        for name, tree in modules().items()
        if any(_broad(node) for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler))
    }
    assert found <= set(BROAD)


@pytest.mark.parametrize("name", modules())
def test_every_module_says_what_it_is_for(name: str) -> None:
    said = ast.get_docstring(modules()[name])
    assert said or not modules()[name].body
