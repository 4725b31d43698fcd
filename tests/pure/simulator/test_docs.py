"""The page about the simulated fleet names every fault, and no other."""

import re
from pathlib import Path

from provisioner.simulator.faults import Kind

PAGE = Path(__file__).parents[3] / "docs" / "simulator.md"


def test_every_fault_is_described() -> None:
    assert re.findall(r"^\| `([a-z][a-z-]*)` \|", PAGE.read_text(), re.MULTILINE) == list(Kind)
