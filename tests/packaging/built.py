"""What is built from the tree, once for all tests of a run: an sdist, and a wheel *from the sdist*."""

import os
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from attrs import frozen

ROOT = Path(__file__).parents[2]
GENEROUS = 300
"""Seconds for one step: it resolves and fetches packages on a busy machine."""


def run(*words: str | Path, cwd: Path | None = None, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a program in a bare environment: nothing of this interpreter's or the checkout's is seen by it."""
    kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "LANG", "LC_"))}
    places = [str(path)] if path else []
    environment = {**kept, "HOME": os.environ.get("HOME", "/"), "PATH": ":".join([*places, "/usr/bin", "/bin"])}
    return subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=GENEROUS,
    )


def good(*words: str | Path, cwd: Path | None = None, path: Path | None = None) -> str:
    """Runs a program that has to end well; its standard output."""
    done = run(*words, cwd=cwd, path=path)
    assert done.returncode == 0, f"{words}: exit {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@frozen
class Built:
    """Paths of what was built."""

    sdist: Path
    wheel: Path


def tracked(place: Path) -> Path:
    """A copy of the files that are under version control, or would be: no leftovers of a work tree are built in."""
    names = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout.splitlines()
    for name in names:
        if (ROOT / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes((ROOT / name).read_bytes())
            (place / name).chmod((ROOT / name).stat().st_mode & 0o777)
    return place


def venv(place: Path, *packages: str | Path, python: str = sys.executable) -> Path:
    """A fresh environment with these packages and what they need; its ``bin``."""
    good(python, "-m", "venv", place)
    if packages:
        good(place / "bin" / "python", "-m", "pip", "install", "--quiet", *packages)
    return place / "bin"


def build(place: Path) -> Built:
    """Builds both from the tree."""
    tree = tracked(place / "tree")
    bin_ = venv(place / "build-venv", "build")
    good(bin_ / "python", "-m", "build", "--outdir", place / "dist", tree)
    (sdist,) = (place / "dist").glob("*.tar.gz")
    (wheel,) = (place / "dist").glob("*.whl")
    return Built(sdist, wheel)


def names(sdist: Path) -> Sequence[str]:
    """The files of an sdist, without its top folder."""
    with tarfile.open(sdist) as archive:
        return [member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()]
