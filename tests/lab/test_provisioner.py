"""The lab's half of the contract: what the mesh delivered becomes a login, a rotation, a revocation (seed 4).

``MESH_LAB_PROVISIONER`` names a built provisioner, ours or another's. It is started as a host starts it: with
``--manifest``, ``--grants`` and libpq's environment, and nothing is known of it but that. ``make test`` names ours.
"""

import os
import subprocess

import psycopg
import pytest

from tests.integration.postgres_lab import Lab, consumer

PROVISIONER = os.environ.get("MESH_LAB_PROVISIONER", "")

pytestmark = pytest.mark.skipif(
    not PROVISIONER, reason="MESH_LAB_PROVISIONER names no provisioner (make test names ours)"
)


def declared(lab: Lab) -> None:
    """What the host does after every declaration."""
    argv = [PROVISIONER, "--manifest", str(lab.manifest_path), "--grants", str(lab.grants)]
    done = subprocess.run(argv, check=False, env=lab.environment(), capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stdout + done.stderr


def deliver(lab: Lab, *modules: str) -> None:
    lab.write(
        *(consumer("node", module, f"{lab.grants}/node.{module}.secret") for module in modules), provision="database"
    )


def test_a_login_that_works(lab: Lab) -> None:
    lab.secret("node", "app", "delivered")
    deliver(lab, "app")
    declared(lab)
    with lab.login("node.app", "delivered") as session:
        session.execute("CREATE TABLE things (n int)")
        session.execute("INSERT INTO things VALUES (1)")
    assert not lab.works("node.app", "guessed")


def test_a_rotation_that_takes_effect(lab: Lab) -> None:
    lab.secret("node", "app", "old")
    deliver(lab, "app")
    declared(lab)
    lab.secret("node", "app", "new")
    declared(lab)
    assert lab.works("node.app", "new")
    assert not lab.works("node.app", "old")


def test_a_revocation_that_bites(lab: Lab) -> None:
    lab.secret("node", "app", "gone")
    lab.secret("node", "other", "stays")
    deliver(lab, "app", "other")
    declared(lab)
    with lab.login("node.app", "gone") as session:
        (lab.grants / "node.app.secret").unlink()
        deliver(lab, "other")
        declared(lab)
        with pytest.raises(psycopg.OperationalError):
            session.execute("SELECT 1")
    assert not lab.works("node.app", "gone")
    assert lab.works("node.other", "stays")
