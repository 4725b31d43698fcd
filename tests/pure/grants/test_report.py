"""Reports: words, counts, exit codes, and what a terminal is shown (mesh.md A5.5, A5.11)."""

import json

import pytest
from attrs import evolve

from provisioner.grants.plan import Retained
from provisioner.grants.report import ConsumerResult, RemovalResult, Report

WIKI = ConsumerResult("n1", "wiki", "n1.wiki", "created")
MAIL = ConsumerResult("n2", "mail", "n2.mail", "failed", "secret file is empty")
CHAT = RemovalResult("n3.chat", "removed", sessions_ended=2, database="retained", databases=("n3.chat",))


def test_the_document_of_the_specification() -> None:
    report = Report("database", manifest_sha256="ab", consumers=[WIKI, MAIL], removed=[CHAT], notes=["a note"])
    told = report.document()
    assert json.loads(json.dumps(told)) == told | {"removed": [told["removed"][0] | {"databases": ["n3.chat"]}]}
    assert told["consumers"] == [
        {"node": "n1", "module": "wiki", "login": "n1.wiki", "result": "created"},
        {"node": "n2", "module": "mail", "login": "n2.mail", "result": "failed", "why": "secret file is empty"},
    ]
    assert told["counts"] == {"created": 1, "set": 0, "failed": 1, "removed": 1}
    assert told["exit_code"] == 1


@pytest.mark.parametrize(
    ("report", "code"),
    [
        (Report("database"), 0),
        (Report("database", consumers=[WIKI], removed=[CHAT]), 0),
        (Report("database", consumers=[WIKI, MAIL]), 1),
        (Report("database", removed=[evolve(CHAT, result="disabled")]), 1),
        (Report("database", withheld="too many"), 1),
        (Report("database", check=True, consumers=[evolve(WIKI, result="would_set")]), 0),
        (Report("database", check=True, consumers=[evolve(WIKI, result="would_set", drift=("x",))]), 1),
        (Report("database", dry_run=True, consumers=[evolve(WIKI, result="would_set", drift=("x",))]), 0),
        (Report("database", check=True, removed=[evolve(CHAT, result="would_remove")]), 1),
        (Report("database", refused="no manifest"), 2),
        (Report("database", ended="gone", consumers=[evolve(WIKI, result="not_tried")]), 3),
        (Report("database", ended="told to stop", stopped=True), 1),
    ],
)
def test_exit_codes(report: Report, code: int) -> None:
    assert report.exit_code == code


def test_what_a_person_reads() -> None:
    report = Report("database", consumers=[WIKI, MAIL], removed=[CHAT], statements=20, seconds=1.26)
    report.retained.append(Retained("n4.old~kept", ("n4.old",), "2026-01-31T12:00:00+00:00"))
    assert list(report.lines()) == [
        "created           n1 wiki  n1.wiki",
        "failed            n2 mail  n2.mail  secret file is empty",
        "removed           (login)  n3.chat  2 sessions ended; retained: n3.chat",
        "kept              n4.old: owned by n4.old~kept since 2026-01-31T12:00:00+00:00",
        "database: 1 created, 1 failed, 1 removed (20 statements, 1.3 s)",
    ]


def test_brief_leaves_out_what_is_as_always() -> None:
    report = Report("database", consumers=[evolve(WIKI, result="set"), MAIL])
    assert [line.split()[0] for line in report.lines(brief=True)] == ["failed", "database:"]


def test_nothing_of_a_name_moves_the_cursor() -> None:
    report = Report("database", consumers=[evolve(WIKI, node="n\x1b[2J", login="\u202en", why="a\nb")])
    assert all(line.isprintable() for line in report.lines())
