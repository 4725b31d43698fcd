"""A provider module's declaration (seed 4)."""

import json
from pathlib import Path
from typing import Any

import pytest

from provisioner.errors import GrantError
from provisioner.grants import declaration
from provisioner.grants.declaration import Declaration

SEED: dict[str, Any] = {
    "provides": [{"name": "database", "scope": "mesh"}],
    "receives": {"database": "/var/lib/postgres/grants/mesh.json"},
    "grants": {"database": "/var/lib/postgres/grants"},
}
DATABASE = Declaration("database", Path("/var/lib/postgres/grants/mesh.json"), Path("/var/lib/postgres/grants"))


def parse(value: Any, provision: str | None = None) -> Declaration:
    return declaration.parse(json.dumps(value).encode(), provision=provision)


def test_the_declaration_of_the_seed() -> None:
    assert parse(SEED) == DATABASE
    assert parse(SEED, "database") == DATABASE


def test_other_keys_are_not_ours() -> None:
    assert parse(SEED | {"packages": ["postgresql"]}) == DATABASE


def test_of_several_provisions_one_is_named() -> None:
    two = {
        "provides": [*SEED["provides"], {"name": "cache", "scope": "node"}],
        "receives": SEED["receives"] | {"cache": "/srv/cache.json"},
        "grants": SEED["grants"] | {"cache": "/srv/cache"},
    }
    assert parse(two, "cache") == Declaration("cache", Path("/srv/cache.json"), Path("/srv/cache"))
    with pytest.raises(GrantError, match="provides database, cache: say which with --provision"):
        parse(two)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ([], "must be an object"),
        ({}, "provides must be a list"),
        (SEED | {"provides": ["database"]}, "provides must be a list of objects"),
        (SEED | {"provides": []}, "provides nothing"),
        (SEED | {"receives": {}}, "receives.database must be an absolute path"),
        (SEED | {"receives": {"database": "mesh.json"}}, "receives.database must be an absolute path"),
        (SEED | {"grants": {"database": 7}}, "grants.database must be an absolute path"),
        (SEED | {"grants": None}, "grants.database must be an absolute path"),
    ],
)
def test_what_can_not_be_used(value: Any, why: str) -> None:
    with pytest.raises(GrantError, match=why):
        parse(value)


@pytest.mark.parametrize("data", [b"", b"{", b"provides: []", b"\xff", b"{}" * 600_000])
def test_what_is_no_declaration(data: bytes) -> None:
    with pytest.raises(GrantError):
        declaration.parse(data, provision=None)


def test_another_provision_is_refused() -> None:
    with pytest.raises(GrantError, match="doesn't provide cache; it provides database"):
        parse(SEED, "cache")
