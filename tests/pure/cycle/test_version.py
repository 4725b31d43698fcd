"""When two versions are the same release."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.cycle.version import same_version


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("0.30.2", "0.30.2"),
        ("0.30.2", "0.30.02"),
        ("0.30.2", "0:0.30.2"),
        ("0.30.2", "x:0.30.2"),
        ("0.30.2", ":0.30.2"),
        ("0.30.2", "0_30_2"),
        ("5", "0:5"),
        (" 1:2", "1:2"),
        ("1.0", "1.000"),
        ("1.00", "01.0"),
        ("1.2.3", "1..2...3"),
        ("1.2a3", "1.2.a.3"),
        ("1:2-3", "01:2-03"),
        ("1.0-1.el9", "1.0-01.el.9"),
        ("1.0~rc1", "1.0~rc.1"),
        ("1.0", "1.0-"),
        ("0.99.0.20260101", "0.99.0.20260101"),
        ("", "-"),
        ("ü", ""),
    ],
)
def test_same(one: str, other: str) -> None:
    assert same_version(one, other)
    assert same_version(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("0.30.2", "0.30.2-1"),
        ("0.30.2", "0.30.3"),
        ("2.0.0", "1.9.0"),
        ("0.30.2", "0.30"),
        ("1.0", "1.0.0"),
        ("0.30.2", "1:0.30.2"),
        ("1.0~rc1", "1.0rc1"),
        ("1.0a", "1.0A"),
        ("1.0-1", "1.0-2"),
        ("1.10", "1.1"),
        ("1.2-3-4", "1.2-3-5"),
        ("10", "1.0"),
        ("", "0"),
        ("1:2", "2:2"),
        ("-1:2", "1:2"),
    ],
)
def test_different(one: str, other: str) -> None:
    assert not same_version(one, other)
    assert not same_version(other, one)


@given(st.text(), st.text())
def test_any_text_is_a_version(one: str, other: str) -> None:
    assert same_version(one, one)
    assert same_version(one, other) == same_version(other, one)


def test_long_ones_cost_little() -> None:
    assert same_version("1" * 100_000, "0" + "1" * 100_000)
    assert not same_version("9" * 100_000 + ":1", "1:1")
    assert same_version("1." * 50_000, "01." * 50_000)
