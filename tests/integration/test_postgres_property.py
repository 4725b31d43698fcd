"""Any sequence of manifests, and of other hands' changes, ends as the last one alone on a fresh server."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.integration import postgres_lab
from tests.integration.postgres_lab import Lab, consumer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

IDENTITIES = [("n1", "a"), ("n1", "b"), ("n2", "a")]
OWNED = {"n1.a": ["n1.a", "one"], "n1.b": ["n1.b", "two"], "n2.a": ["n2.a", "three"]}


@st.composite
def manifests(draw: st.DrawFn) -> list[dict[str, Any]]:
    """A manifest that can be served whole: owners of databases, and readers of what somebody in it owns."""
    present = draw(st.lists(st.sampled_from(IDENTITIES), unique=True))
    owners = [each for each in present if draw(st.booleans()) or each == present[0]]
    entries, databases = [], []
    for node, module in owners:
        name = draw(st.sampled_from(OWNED[f"{node}.{module}"]))
        databases.append(name)
        entries.append(consumer(node, module, name=name))
    for node, module in present:
        if (node, module) not in owners:
            access = draw(st.sampled_from(["readonly", "readwrite"]))
            entries.append(consumer(node, module, name=draw(st.sampled_from(databases)), access=access))
    return entries


MEDDLING = [
    'ALTER ROLE "{role}" NOLOGIN',
    "ALTER ROLE \"{role}\" PASSWORD 'x' CONNECTION LIMIT 0 VALID UNTIL '2001-01-01'",
    'ALTER ROLE "{role}" NOINHERIT',
    'ALTER DATABASE "{database}" ALLOW_CONNECTIONS false',
    'ALTER DATABASE "{database}" IS_TEMPLATE true',
    'GRANT ALL ON DATABASE "{database}" TO PUBLIC',
    'REVOKE ALL ON DATABASE "{database}" FROM "{owner}"',
    'COMMENT ON DATABASE "{database}" IS NULL',
    'DROP DATABASE "{database}" WITH (FORCE)',
    "UPDATE pg_database SET datconnlimit = -2 WHERE datname = '{database}'",
]

HISTORIES = st.lists(st.tuples(manifests(), st.lists(st.sampled_from(MEDDLING), max_size=2)), max_size=3)
SETTINGS = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def serve(lab: Lab, entries: list[dict[str, Any]], on_revoke: str) -> None:
    lab.write(*entries)
    report = lab.run(on_revoke=on_revoke)
    assert report.exit_code == 0, list(report.lines())


def meddle(lab: Lab, statement: str) -> None:
    """What an operator or an owner might do, to the first of ours."""
    found = lab.do(
        """SELECT datname, pg_get_userbyid(datdba) FROM pg_database
           WHERE oid > 16383 AND pg_get_userbyid(datdba) !~ 'kept' AND NOT datistemplate AND datconnlimit <> -2
           ORDER BY 1"""
    )
    if found:
        database, owner = found[0]
        lab.do(statement.format(database=database, owner=owner, role=owner))


def fresh(lab: Lab) -> None:
    lab.clean()
    postgres_lab.prepare(lab.server)


@SETTINGS
@pytest.mark.parametrize("on_revoke", ["retain", "drop"])
@given(history=HISTORIES, last=manifests())
def test_only_the_last_manifest_counts(
    lab: Lab, on_revoke: str, history: list[Any], last: list[dict[str, Any]]
) -> None:
    for node, module in IDENTITIES:
        lab.secret(node, module, f"pw-{node}-{module}")
    fresh(lab)
    serve(lab, last, on_revoke)
    wanted = lab.catalogue(kept=False)
    fresh(lab)
    for entries, statements in history:
        serve(lab, entries, on_revoke)
        for statement in statements:
            meddle(lab, statement)
    serve(lab, last, on_revoke)
    found = lab.catalogue(kept=False)
    if on_revoke == "retain":
        # A login that stays keeps a database that it asks for no more: that is data.
        asked = {entry["asks"]["name"] for entry in last} | {"postgres", "template0", "template1"}
        found["databases"] = [row for row in found["databases"] if row[0] in asked]
        found = {key: value for key, value in found.items() if not key.startswith("in ") or key[3:] in asked}
    assert found == wanted
    for entry in last:
        login = f"{entry['node']}.{entry['module']}"
        assert lab.works(login, f"pw-{entry['node']}-{entry['module']}", entry["asks"]["name"])
