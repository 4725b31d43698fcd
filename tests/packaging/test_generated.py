"""Manual pages and completion: as the programs' flags are, taken by the tools that read them, tried in real shells."""

import importlib.util
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from tests.packaging.built import ROOT

CONTRIB = ROOT / "contrib"
PROGRAMS = ("choria-provisioner", "postgres-provisioner", "mesh-provisioner")


def _generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("contrib_generate", CONTRIB / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_they_are_as_the_code_has_them() -> None:
    made = _generate().made()
    assert len(made) == 9
    assert [str(path) for path, text in made.items() if path.read_text() != text] == [], "run `make docs`"


def ran(*words: str | Path, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "HOME": "/", "MANROFFOPT": "-ww", "TERM": "dumb"},
    )


@pytest.mark.skipif(shutil.which("mandoc") is None, reason="no mandoc here")
@pytest.mark.parametrize("program", PROGRAMS)
def test_mandoc_has_nothing_to_say(program: str) -> None:
    done = ran("mandoc", "-Tlint", "-Wwarning", CONTRIB / "man" / f"{program}.8")
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("man") is None or shutil.which("groff") is None, reason="no man and groff here")
@pytest.mark.parametrize("program", PROGRAMS)
def test_man_has_nothing_to_say(program: str) -> None:
    done = ran("man", "--warnings", "--local-file", "--encoding=UTF-8", CONTRIB / "man" / f"{program}.8")
    # Long examples can't be broken.
    said = [line for line in done.stderr.splitlines() if "can't break line" not in line and "cannot adjust" not in line]
    assert (done.returncode, said) == (0, [])
    assert "EXIT STATUS" in done.stdout


BASH = """
source "$1"
read -r -a COMP_WORDS <<<"$2"
[[ $2 == *" " ]] && COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
function_name=$(complete -p "${COMP_WORDS[0]}" | sed -E 's/.* -F ([^ ]+) .*/\\1/')
"$function_name" "${COMP_WORDS[0]}" "${COMP_WORDS[COMP_CWORD]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


def completed(program: str, line: str) -> set[str]:
    done = ran("bash", "--norc", "-c", BASH, "bash", CONTRIB / "completion" / "bash" / program, line)
    assert done.returncode in {0, 1}, done.stderr
    assert done.stderr == ""
    return {word.strip() for word in done.stdout.splitlines() if word.strip()}


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_in_bash(tmp_path: Path) -> None:
    every = completed("choria-provisioner", "choria-provisioner ")
    assert {"run", "check", "helper", "provision", "status", "demo", "simulate"} <= every
    assert completed("choria-provisioner", "choria-provisioner st") == {"status"}
    assert completed("choria-provisioner", "choria-provisioner --conf") == {"--config"}
    assert completed("choria-provisioner", "choria-provisioner demo --w") == {"--workers"}
    (tmp_path / "one.yaml").touch()
    assert completed("choria-provisioner", f"choria-provisioner run --config {tmp_path}/o") == {f"{tmp_path}/one.yaml"}
    assert completed("mesh-provisioner", "mesh-provisioner serve --tls") == {"--tls-ca"}
    assert completed("postgres-provisioner", "postgres-provisioner run --man") == {"--manifest"}


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh here")
@pytest.mark.parametrize("program", PROGRAMS)
def test_zsh_takes_it(program: str, tmp_path: Path) -> None:
    lines = f"fpath=({CONTRIB / 'completion' / 'zsh'} $fpath); autoload -Uz compinit; compinit -u -d {tmp_path}/dump\n"
    done = ran("zsh", "-f", "-c", lines + f"autoload +X _{program} && print -- $_comps[{program}]")
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, f"_{program}", "")
