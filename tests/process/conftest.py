"""Each test here must leave no child, no zombie and no descriptor behind."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.process import processes
from tests.process.processes import children, descriptors

Script = Callable[..., list[str]]


@pytest.fixture(autouse=True)
def tidy() -> Iterator[None]:
    """Fails a test that leaves a child or a descriptor behind."""
    processes.STRANGERS.clear()
    processes.STRANGERS.update(children())
    before = descriptors()
    yield
    assert (descriptors(), children()) == (before, [])


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """Makes an executable shell script and gives its command line."""

    def make(body: str, *arguments: str, first: str = "#!/bin/sh\n", mode: int = 0o755) -> list[str]:
        path = tmp_path / "helper"
        path.write_text(first + body)
        path.chmod(mode)
        return [str(path), *arguments]

    return make
