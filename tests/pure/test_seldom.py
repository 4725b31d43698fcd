"""One line a minute for each word, and how many were left out."""

import logging

import pytest

from provisioner.seldom import Seldom


def test_a_flood_is_one_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = 1000.0
    seldom = Seldom(logging.getLogger("flood"), clock=lambda: now)
    for _ in range(500):
        seldom.warning("bad_event", "an event by %s", "n1")
    seldom.warning("roster_full", "no room")
    now += 60
    seldom.warning("bad_event", "an event by %s", "n2")
    now += 60
    seldom.warning("bad_event", "an event by %s", "n3")
    assert [record.getMessage() for record in caplog.records] == [
        "an event by n1",
        "no room",
        "an event by n2 (and 499 more like it since the last such line)",
        "an event by n3",
    ]
