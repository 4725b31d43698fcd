"""The documentation says what the code does: every key, flag, metric, reason word and exit code, and no stale one."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
from prometheus_client import CollectorRegistry

from provisioner import errors
from provisioner.choria.settings import known_keys
from provisioner.config import parse_config
from provisioner.cycle.outcome import KINDS
from provisioner.metrics import FAILURES, OUTCOMES, REFUSALS, Metrics

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.glob("*.md"), ROOT / "README.md", ROOT / "CHANGELOG.md"])


def _generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATE = _generate()


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_tables_are_as_the_code_has_them(page: Path) -> None:
    text = page.read_text()
    assert GENERATE.filled(text) == text, "run `make docs`"


def test_each_table_is_on_some_page() -> None:
    there = {name for page in PAGES for name in re.findall(r"<!-- generated: (\S+) -->", page.read_text())}
    assert there == set(GENERATE.TABLES)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_metrics_named_on_a_page_exist(page: Path) -> None:
    known = {
        sample.name.removesuffix("_total")
        for family in Metrics(CollectorRegistry(), "x").registry.collect()
        for sample in family.samples
    } | {family.name for family in Metrics(CollectorRegistry(), "x").registry.collect()}
    assert set(re.findall(r"\bchoria_provisioner_\w+", page.read_text())) <= known


def test_every_key_of_choria_cfg_is_documented() -> None:
    page = (DOCS / "configuration.md").read_text()
    assert {key for key in known_keys() if f"`{key}`" not in page} == set()
    documented = set(re.findall(r"`(plugin\.[a-z0-9_.]+)`", page))
    assert documented <= set(known_keys())


def test_every_key_of_the_reference_is_in_the_table() -> None:
    assert {key.name for key in GENERATE.KEYS} >= GENERATE.REFERENCE_KEYS
    assert len(GENERATE.REFERENCE_KEYS | set(GENERATE.DEAD)) == 25


@pytest.mark.parametrize("name", ["minimal", "usual"])
def test_examples_of_the_configuration_are_accepted(name: str) -> None:
    page = (DOCS / "configuration.md").read_text()
    (example,) = re.findall(rf"<!-- tested: {name} -->\n```yaml\n(.*?)```", page, re.DOTALL)
    assert not parse_config(example, Path("x")).warnings


def test_reason_words_are_one_list_everywhere() -> None:
    assert tuple(KINDS) == OUTCOMES
    assert tuple(word for word, kind in KINDS.items() if kind.error) == FAILURES
    raised = {
        error.reason
        for error in vars(errors).values()
        if isinstance(error, type) and issubclass(error, errors.ProvisionerError)
    }
    assert raised - {"bad_configuration_file"} <= set(OUTCOMES)


def test_every_refusal_is_documented() -> None:
    page = (DOCS / "metrics.md").read_text()
    assert {word for word in REFUSALS if f"`{word}`" not in page} == set()


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_pages_are_plain(page: Path) -> None:
    text = page.read_text()
    assert "../shared" not in text
    assert text.count("```") % 2 == 0
