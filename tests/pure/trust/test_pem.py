"""PEM blocks taken apart."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.trust.pem import Block, armour, first_block

BODY = bytes(range(100))


def test_a_block_is_written_in_lines_of_64_and_read_back() -> None:
    text = armour("CERTIFICATE", BODY)
    lines = text.splitlines()
    assert lines[0] == "-----BEGIN CERTIFICATE-----"
    assert [len(line) for line in lines[1:-1]] == [64, 64, 8]
    assert text.endswith("-----END CERTIFICATE-----\n")
    assert first_block(text) == Block("CERTIFICATE", has_headers=False, body=BODY)


def test_headers_are_seen_and_are_not_part_of_the_body() -> None:
    text = armour("RSA PRIVATE KEY", BODY, ("Proc-Type: 4,ENCRYPTED", "DEK-Info: AES-256-CBC,00"))
    assert "CBC,00\n\nAAEC" in text
    for ends in (text, text.replace("\n", "\r\n")):
        assert first_block(ends) == Block("RSA PRIVATE KEY", has_headers=True, body=BODY)


def test_the_first_of_several_blocks_counts_and_what_stands_before_it_does_not() -> None:
    text = "a comment\n" + armour("A", b"1") + armour("B", b"2")
    assert first_block(text) == Block("A", has_headers=False, body=b"1")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        "-----BEGIN ",
        "-----BEGIN A-----",
        "-----BEGIN A-----\nAAAA\n-----END B-----",
        "-----BEGIN A-----\n!!!!\n-----END A-----",
        "-----BEGIN A-----\nAAA\n-----END A-----",
        "-----BEGIN A-----\nAA\xe9A\n-----END A-----",
        "-----BEGIN A-----\nName: without an empty line\nAAAA\n-----END A-----",
        "-----BEGIN A\nB-----\nAAAA\n-----END A\nB-----",
        "-----BEGIN " + "A" * 65 + "-----\nAAAA\n-----END " + "A" * 65 + "-----",
        "AAAA\n-----END A-----",
    ],
)
def test_what_is_no_whole_block_is_none(text: str) -> None:
    assert first_block(text) is None


def test_many_beginnings_without_an_end_cost_no_more_than_one() -> None:
    assert first_block("-----BEGIN A-----\n" * 500_000) is None


@given(st.text(st.sampled_from("-BEGIN ND\n\rA:=")))
def test_no_text_is_too_odd(text: str) -> None:
    first_block(text)


def test_the_body_is_not_shown() -> None:
    assert "secret" not in repr(first_block(armour("A", b"secret")))
