"""The election's table and what the store says, against recorded answers (wire-protocol 10; live 3)."""

import json
from pathlib import Path

import pytest

from provisioner.errors import BadReply
from provisioner.leader import election
from provisioner.leader.election import TRANSITIONS, Act, News, Rhythm, Standing

RECORDING = Path(__file__).parents[2] / "fixtures" / "wire-v2-issuer.jsonl"


def recorded() -> list[dict[str, object]]:
    return [json.loads(line) for line in RECORDING.read_text().splitlines()[:17]]


def test_the_table_is_total() -> None:
    assert set(TRANSITIONS) == {(standing, news) for standing in Standing for news in News}


def test_only_a_confirmed_write_leads_or_extends() -> None:
    for (standing, news), (becomes, act) in TRANSITIONS.items():
        assert (act in {Act.OPEN, Act.EXTEND}) == (news is News.GRANTED)
        if becomes is Standing.LEADER and news is not News.GRANTED:
            assert (standing, news) == (Standing.LEADER, News.SILENT)


def test_the_recorded_bucket() -> None:
    asked, answered = recorded()[1:3]
    assert asked["subject"] == election.info_subject(election.CHORIA_API)
    bucket = election.read_bucket(election.CHORIA_API, str(answered["data"]).encode())
    assert bucket is not None
    assert bucket.ttl == 60.0
    assert bucket.subject == "choria.streams.$KV.CHORIA_LEADER_ELECTION.provisioner"
    assert bucket.created == "2026-11-29T13:32:24.66636297Z"


def test_the_recorded_writes() -> None:
    answers = [line for line in recorded() if '"stream":"KV_CHORIA_LEADER_ELECTION","seq"' in str(line["data"])]
    assert [election.read_write(str(line["data"]).encode()) for line in answers] == [
        (News.GRANTED, n) for n in range(1, len(answers) + 1)
    ]
    assert len(answers) >= 5
    first = next(line for line in recorded() if line["headers"])
    assert first["headers"] == {election.EXPECTED: "0"}


def test_plain_nats() -> None:
    answer = {"config": {"max_age": 8_000_000_000}, "created": "now"}
    bucket = election.read_bucket(election.PLAIN_API, json.dumps(answer).encode())
    assert bucket is not None
    assert bucket.subject == "$KV.CHORIA_LEADER_ELECTION.provisioner"


def test_no_bucket_is_not_an_error() -> None:
    answer = {"error": {"code": 404, "err_code": 10059, "description": "stream not found"}}
    assert election.read_bucket(election.PLAIN_API, json.dumps(answer).encode()) is None


def test_a_refused_write_is_a_no() -> None:
    answer = {"error": {"code": 400, "err_code": 10071, "description": "wrong last sequence: 235"}}
    assert election.read_write(json.dumps(answer).encode()) == (News.REFUSED, 0)


@pytest.mark.parametrize("max_age", [0, 1_000_000_000, 7_200_000_000_000, None, "60s", 1.5e9])
def test_a_bucket_that_cannot_serve(max_age: object) -> None:
    with pytest.raises(BadReply):
        election.read_bucket(election.PLAIN_API, json.dumps({"config": {"max_age": max_age}}).encode())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"{",
        b"\xff",
        b"[" * 40_000,
        b'{"stream":"OTHER","seq":1}',
        b'{"stream":"KV_CHORIA_LEADER_ELECTION","seq":true}',
        b'{"stream":"KV_CHORIA_LEADER_ELECTION","seq":0}',
        b'{"stream":"KV_CHORIA_LEADER_ELECTION","seq":"1"}',
        b'{"error":{"code":503,"description":"full"}}',
        b'{"error":"x"}',
        b" " * 70_000,
    ],
)
def test_what_is_no_answer(data: bytes) -> None:
    with pytest.raises(BadReply):
        election.read_write(data)


def test_the_rhythm_of_a_minute() -> None:
    rhythm = Rhythm(60.0)
    assert (rhythm.renew, rhythm.hurry, rhythm.campaign, rhythm.answer) == (12.0, 1.0, 2.0, 5.0)
    assert rhythm.term_end(100.0) == 154.0
    # At least two renewals fit before the term ends, each with time for its answer.
    assert rhythm.renew + rhythm.answer + rhythm.hurry + rhythm.answer < 54.0


def test_a_hand_over_is_read_back() -> None:
    assert election.decode_handover(election.encode_handover(7, "prov.example.net")) == (7, "prov.example.net")


@pytest.mark.parametrize(
    "data", [b"{}", b'{"revision":-1,"from":"x"}', b'{"revision":true,"from":"x"}', b'{"revision":1}']
)
def test_what_is_no_hand_over(data: bytes) -> None:
    with pytest.raises(BadReply):
        election.decode_handover(data)
