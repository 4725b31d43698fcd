"""Every example of the documentation works: each code block is run, parsed or checked here, or by a test named here.

A block of a kind that nobody checks fails ``test_every_block_is_checked``: add its check, or say which test has it.
"""

import ast
import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cache, partial
from inspect import isawaitable
from pathlib import Path, PurePath
from typing import Any

import pytest
import trio
import trio.testing
import yaml
from attrs import frozen
from prometheus_client import CollectorRegistry

from provisioner import service, strictjson
from provisioner.bus.keyvalue import KeyValue
from provisioner.bus.memory import MemoryBroker
from provisioner.bus.memory_streams import MemoryStreams
from provisioner.choria.settings import read_settings
from provisioner.choria.v1 import V1
from provisioner.cli.program import Program
from provisioner.config import parse_config
from provisioner.cycle.steps import Cycle
from provisioner.errors import ConfigError
from provisioner.grants import declaration, manifest, mark
from provisioner.registry.keys import SHAPES
from provisioner.registry.serve import Service
from provisioner.registry.table import TABLE, Kind
from provisioner.simulator import faults
from provisioner.simulator.fleet import make_servers, open_fleet, summary
from provisioner.testing import ScriptedHelper
from tests.flow.conftest import CONFIG
from tests.test_docs import DOCS, GENERATE, PAGES, ROOT, named

FENCE = re.compile(r"^([ ]*)```([^\n`]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


@frozen
class Block:
    """One block of code on a page."""

    page: str
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.language}:{self.text[:20]!r}"


def _blocks() -> Iterator[Block]:
    for page in PAGES:
        for found in FENCE.finditer(page.read_text()):
            indent, language, text = found.groups()
            yield Block(named(page), language, re.sub(f"^{indent}", "", text, flags=re.MULTILINE))


BLOCKS = list(_blocks())

ELSEWHERE = {
    ("docs/helper.md", "python"): "tests/process/test_examples.py",
    ("docs/helper.md", "sh"): "tests/process/test_examples.py",
    ("docs/helper.md", "json"): "tests/process/test_examples.py",
    ("docs/embedding.md", "python"): "tests/process/test_embedding.py",
    ("docs/postgres.md", "sql"): "tests/integration/test_postgres_page.py",
}
"""Blocks that another test runs, and which."""

CHECKED = {"yaml", "ini", "json", "sh", "console", "python", "text", "{toctree}"}
"""``text`` is drawings and output; ``{toctree}`` is Sphinx's own."""


def of(*languages: str) -> list[Block]:
    return [one for one in BLOCKS if one.language in languages and (one.page, one.language) not in ELSEWHERE]


def test_every_block_is_checked() -> None:
    assert {(one.page, one.language) for one in BLOCKS if one.language not in CHECKED} <= set(ELSEWHERE)
    assert {key for key in ELSEWHERE if key not in {(one.page, one.language) for one in BLOCKS}} == set()
    for test in ELSEWHERE.values():
        assert (ROOT / test).is_file()
    assert len(BLOCKS) > 60


# --- configuration ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", of("yaml"), ids=str)
def test_yaml_is_a_configuration_or_alerts(block: Block) -> None:
    tree = yaml.safe_load(block.text)
    if "groups" in tree:
        for rule in (rule for group in tree["groups"] for rule in group["rules"]):
            assert set(rule) - {"for", "labels", "annotations"} == {"alert", "expr"}
            assert re.search(r"\b(choria|postgres|mesh)_provisioner_\w+", rule["expr"])
        return
    # A part of a file is completed by the two keys that every file has.
    needed = {"helper": "/opt/prov/helper.py", "token": "t"}
    text = block.text + "".join(f"{key}: {value}\n" for key, value in needed.items() if key not in tree)
    assert parse_config(text, Path("x")).warnings == ()


@pytest.mark.parametrize("block", of("ini"), ids=str)
def test_ini_is_a_choria_configuration(block: Block) -> None:
    found = read_settings([(PurePath("/etc/choria.cfg"), block.text)], environ={}, default_identity="x.example.net")
    assert found.identity == "provisioner1.example.net"
    keys = set(re.findall(r"^([\w.]+) =", block.text, re.MULTILINE))
    assert keys <= set(GENERATE.known_keys())


def test_faults_are_told_as_on_the_page() -> None:
    (said,) = (one.text for one in BLOCKS if one.page == "docs/configuration.md" and one.language == "text")
    with pytest.raises(ConfigError) as caught:
        parse_config("workers: -2\ntoken: t\n", Path("/etc/choria-provisioner/choria-provisioner.yaml"))
    assert {f"choria-provisioner: {fault}" for fault in caught.value.faults} == set(said.splitlines())


# --- JSON -------------------------------------------------------------------------------------------------------------


def documents(text: str) -> list[Any]:
    """One document, or one in each line."""
    try:
        return [strictjson.loads(text)]
    except strictjson.NotJSON:
        return [strictjson.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("block", of("json"), ids=str)
def test_json_is_what_the_page_says(block: Block) -> None:
    for one in documents(block.text):
        match one:
            case {"provides": _}:
                assert declaration.parse(json.dumps(one).encode(), provision=None).manifest.is_absolute()
            case {"consumers": consumers}:
                found = manifest.parse(json.dumps(one).encode(), provision="database")
                assert len(found.consumers) == len(consumers)
                assert found.refused == ()
            case {"made_by": "postgres-provisioner"}:
                assert mark.decode(json.dumps(one), "database") is not None
            case {"kind": _}:
                assert Kind.decode(json.dumps(one).encode()) in TABLE
            case {"what": what}:
                assert what in SHAPES
            case _:
                raise AssertionError(f"nobody knows what this is: {one}")


# --- commands ---------------------------------------------------------------------------------------------------------

PROGRAMS: dict[str, Program] = {program.name: program for program in GENERATE.programs()}

OTHERS = {
    "apt-get", "cp", "dpkg-buildpackage", "install", "ln", "make", "mkdir", "nats-server", "pip", "python3", "rm",
    "ssh", "systemctl", "systemd-sysusers",
}  # fmt: skip
"""Programs of the system that the pages use."""


def commands(block: Block) -> Iterator[list[str]]:
    """The words of each command line."""
    lines = block.text.replace("\\\n", " ").splitlines()
    if block.language == "console":
        lines = [line[2:] for line in lines if line.startswith(("$ ", "# "))]
    for line in lines:
        if words := shlex.split(line, comments=True):
            yield words


@cache
def parser(program: str, command: str) -> Any:
    made = PROGRAMS[program]
    return made.parser(next(one for one in made.commands if one.name == command))


def try_flags(words: list[str]) -> None:
    """Parses a command line of ours, as the program would."""
    name = Path(words[0]).name
    rest = [word for word in words[1:] if word not in {"...", "&"}]
    shortened = len(rest) < len(words) - 1 and "..." in words
    if ">" in rest or "<" in rest:
        rest = rest[: min(rest.index(sign) for sign in "<>" if sign in rest)]
    if rest == ["--version"]:
        return
    known = {command.name for command in PROGRAMS[name].commands}
    command = rest.pop(0) if rest and rest[0] in known else PROGRAMS[name].default
    assert command in known, words
    if shortened:  # what "..." stands for is needed
        flags = {flag for action in parser(name, command)._actions for flag in action.option_strings}
        assert {word for word in rest if word.startswith("--")} <= flags
        return
    try:
        parser(name, command).parse_args(rest)
    except SystemExit:
        raise AssertionError(f"{name} {command} does not take {rest}") from None


@pytest.mark.parametrize("block", of("sh", "console"), ids=str)
def test_commands_can_be_given_like_that(block: Block) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    units = {path.name for path in (ROOT / "contrib" / "systemd").iterdir()}
    found = list(commands(block))
    assert found
    for words in found:
        program = Path(words[0]).name
        if program in PROGRAMS:
            try_flags(words)
        elif words[0].startswith(("docs/", "./")):
            assert (ROOT / words[0]).is_file()
        else:
            assert program in OTHERS, words
        if program == "make":
            assert set(words[1:]) <= targets
        if program == "systemctl":
            named_units = [word if "." in word else f"{word}.service" for word in words[2:] if word[0] != "-"]
            assert {f"{word}" for word in named_units} <= units, words
        for word in words[1:]:
            if re.match(r"(docs|contrib|tests|benchmarks)/", word):
                assert (ROOT / word).exists(), word


def test_commands_that_do_not_exist_are_seen() -> None:
    for line in ("choria-provisioner run --confg x", "mesh-provisioner serv", "choria-provisioner run"):
        with pytest.raises(AssertionError):
            test_commands_can_be_given_like_that(Block("x", "sh", line))


FOREIGN = {"--upgrade", "--user", "--now", "--help"}
"""Flags of programs that aren't ours."""

BENCHMARKS = {
    flag
    for path in (ROOT / "benchmarks").rglob("*.py")
    for flag in re.findall(r"add_argument\(\s*\"(--[\w-]+)", path.read_text())
}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_flags_named_in_the_text_exist(page: Path) -> None:
    text = FENCE.sub("", page.read_text())
    flags = {
        flag
        for program in PROGRAMS.values()
        for command in program.commands
        for action in parser(program.name, command.name)._actions
        for flag in action.option_strings
    }
    said = {flag for code in re.findall(r"`([^`\n]+)`", text) for flag in re.findall(r"(?<![\w-])--[a-z][\w-]+", code)}
    assert said - flags - FOREIGN - BENCHMARKS == set()


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_files_named_in_the_text_exist(page: Path) -> None:
    said = re.findall(r"`((?:docs|contrib|provisioner|tests|benchmarks)/[\w./-]*)(?:::[\w:]+)?`", page.read_text())
    assert [name for name in said if not (ROOT / name).exists()] == []


# --- Python -----------------------------------------------------------------------------------------------------------


async def run_block(text: str, names: dict[str, Any]) -> dict[str, Any]:
    """Runs a block that may await at its top."""
    made = compile(text, "block", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(made, names)
    if isawaitable(result):
        await result
    return names


def python(page: str) -> str:
    (block,) = (one for one in BLOCKS if one.page == page and one.language == "python")
    return block.text


def test_python_blocks_are_all_run() -> None:
    pages = {one.page for one in BLOCKS if one.language == "python"}
    own = {"docs/simulator.md", "docs/mesh.md"}
    assert pages == own | {page for page, language in ELSEWHERE if language == "python"}


async def test_the_fleet_on_the_page(
    autojump_clock: trio.testing.MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = MemoryBroker()
    names = {"bus": broker.connect(), "time": time}
    names |= {"make_servers": make_servers, "open_fleet": open_fleet, "summary": summary}
    serve = partial(
        service.serve,
        CONFIG,
        identity="prov.example.net",
        bus=broker.connect(),
        wire=V1("choria=prov.example.net"),
        run_helper=ScriptedHelper(),
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(serve)
        with trio.fail_after(3600):  # of the jumping clock
            await run_block(python("docs/simulator.md"), names)
        nursery.cancel_scope.cancel()
    assert capsys.readouterr().out == "50 servers: 50 configured (at most 1 times), 50 restarted\n"


async def test_the_client_on_the_page(autojump_clock: trio.testing.MockClock) -> None:
    broker = MemoryBroker()
    MemoryStreams(broker)
    bus = broker.connect()
    for shape in SHAPES.values():
        await KeyValue(bus, shape.bucket).create_bucket()
    async with trio.open_nursery() as nursery:
        mesh = Service(broker.connect(), CollectorRegistry())
        await nursery.start(lambda task_status: mesh.run(task_status=task_status))
        with trio.fail_after(3600):
            while not (await KeyValue(bus, SHAPES["registry"].bucket).entries()).items():
                await trio.sleep(0.1)
            names = await run_block(python("docs/mesh.md"), {"bus": bus})
        nursery.cancel_scope.cancel()
    assert names["kind"].kind == "bound"
    (item,) = names["page"].items
    assert (item["node"], item["module"], item["value"]) == ("n1.example.net", "app", {"provider": "postgres"})


# --- drawings and lists -----------------------------------------------------------------------------------------------

TASKS = {
    "self._serve_pages": "monitor page",
    "self._watch_connection": "connection watch",
    "self._announce": "announcement",
    "term.watch": "term.watch",
    "caller.watch_connection": "caller.watch_connection",
    "crew.run": "crew",
}
"""What ``service.py`` starts, and the words for it in the drawing."""


def test_the_nursery_tree_has_every_task_of_the_service() -> None:
    source = ast.parse(Path(service.__file__).read_text())
    started = {
        ast.unparse(node.args[0])
        for node in ast.walk(source)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"start", "start_soon"}
    }
    assert started == set(TASKS)
    for words in (*TASKS.values(), "discovery", "lifecycle", "worker 1"):
        assert re.search(rf"[├└]─ {re.escape(words)}\b", GENERATE.nursery_tree()), words


def test_the_walk_has_every_step_of_the_cycle() -> None:
    begun = {
        node.args[0].value
        for node in ast.walk(ast.parse(Path(sys.modules[Cycle.__module__].__file__ or "").read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "_begin"
        if isinstance(node.args[0], ast.Constant)
    }
    rows = [line.split(" | ")[1] for line in GENERATE.walk().splitlines() if re.match(r"\| \d", line)]
    assert set(rows) - begun == {"(deciding what is written)"}
    assert begun <= set(rows)
    assert len(rows) == len(set(rows)) == 10


def test_every_fault_of_the_simulator_is_on_its_page() -> None:
    page = (DOCS / "simulator.md").read_text()
    assert set(re.findall(r"^\| `(\w[\w-]*)` \|", page, re.MULTILINE)) == set(faults.Kind)


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going", "--nitpicky"]
    done = subprocess.run(
        [*argv, "-d", tmp_path / "trees", DOCS, tmp_path / "site"],
        check=False,
        capture_output=True,
        text=True,
        timeout=55,
    )
    assert (done.returncode, done.stderr) == (0, "")
    built = {path.stem for path in (tmp_path / "site").glob("*.html")} - {"genindex", "search"}
    assert built == {path.stem for path in DOCS.glob("*.md")}
    for page in (tmp_path / "site").glob("*.html"):
        assert not re.search(r'<(script|link|img)[^>]* (src|href)="(https?:)?//', page.read_text()), page.name
