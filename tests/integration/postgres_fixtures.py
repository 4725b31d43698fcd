"""Fixtures for the PostgreSQL tests: one server of each major for the whole session, cleaned after each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioner.grants.cluster import Cluster
from tests.integration import postgres_lab
from tests.integration.postgres_lab import Lab


def _majors() -> list[object]:
    """15 in the quick tier; a newer one beside it where it can be had, as 16 changed what a creator may do."""
    return [15, pytest.param(16, marks=pytest.mark.slow), pytest.param(18, marks=pytest.mark.slow)]


@pytest.fixture(scope="session", params=_majors())
def postgres(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A running server."""
    if postgres_lab.binaries(request.param) is None:
        pytest.skip(f"PostgreSQL {request.param} is not on this machine (Debian: apt-get install postgresql)")
    with postgres_lab.raised(request.param) as server:
        yield server


@pytest.fixture
def lab(postgres: Cluster, tmp_path: Path) -> Iterator[Lab]:
    """A server with nothing on it but the provisioner's login, and an empty grants directory."""
    postgres_lab.prepare(postgres)
    grants = tmp_path / "grants"
    grants.mkdir(mode=0o755)
    found = Lab(postgres, grants)
    try:
        yield found
    finally:
        found.clean()
