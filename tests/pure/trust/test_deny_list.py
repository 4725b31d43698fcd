"""Names that no certificate is asked for: RE2's meaning of a pattern, whatever the case of the name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.errors import ConfigError
from provisioner.trust.request import DenyList

DEFAULT = (r"\.privileged.mcollective$", r"\.privileged.choria$", r"\.mcollective$", r"\.choria$")


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("n1.example.net", None),
        ("mcollective", None),
        ("mcollective.example.net", None),
        ("bob.mcollective", r"\.mcollective$"),
        ("root.privileged.mcollective", r"\.privileged.mcollective$"),
        ("root.privileged.choria", r"\.privileged.choria$"),
        ("BOB.MCollective", r"\.mcollective$"),
        ("bob.mcollective.", r"\.mcollective$"),
        ("bob.MCOLLECTIVE..", r"\.mcollective$"),
        (" bob.choria ", r"\.choria$"),
        ("bob.choria\n", r"\.choria$"),
    ],
)
def test_the_default_list(name: str, pattern: str | None) -> None:
    assert DenyList(DEFAULT).denies(name) == pattern


@pytest.mark.parametrize(
    ("pattern", "denied", "let_by"),
    [
        (r"/\.corp$/", "x.corp", "x.corp.net"),
        (r"///^root///", "root1", "aroot"),
        (r"^[[:alpha:]]+\.choria$", "bob.choria", "b0b.choria"),
        (r"^\pL+$", "abc", "a1"),
        (r"x\z", "ax", "xa"),
        (r"\Qa.b\E", "a.b", "axb"),
        (r"a(?i)b", "aB", "cb"),
        (r"(?U)^a+$", "aa", "ab"),
        (r"^Node", "Node1", "node1"),
        (r"\.choria\.$", "BOB.CHORIA.", "BOB.CHORIA"),
    ],
)
def test_patterns_mean_what_they_mean_to_go(pattern: str, denied: str, let_by: str) -> None:
    deny = DenyList([pattern])
    assert deny.denies(denied) == pattern
    assert deny.denies(let_by) is None


def test_an_empty_list_denies_nothing() -> None:
    assert DenyList([]).denies("root.mcollective") is None


def test_every_pattern_that_does_not_compile_is_named() -> None:
    with pytest.raises(ConfigError) as caught:
        DenyList(["/[a-/", r"\.ok$", "(?=x)", "/", "a{2000}"], file="/etc/p.yaml")
    assert [str(fault) for fault in caught.value.faults] == [
        "/etc/p.yaml: cert_deny_list: not a pattern of RE2 syntax: missing ]: [a- (found /[a-/)",
        "/etc/p.yaml: cert_deny_list: not a pattern of RE2 syntax: invalid perl operator: (?= (found (?=x))",
        "/etc/p.yaml: cert_deny_list: an empty pattern would deny every name (found /)",
        "/etc/p.yaml: cert_deny_list: not a pattern of RE2 syntax: invalid repetition size: {2000} (found a{2000})",
    ]
    assert caught.value.faults[0].found == "/[a-/"


def test_a_pattern_that_makes_others_backtrack_does_not_here() -> None:
    """Python's own matcher would take longer than the universe has; the time-out of the test is the bound."""
    deny = DenyList([r"/(a+)+$/", r"^(a|aa)+$", r"(x+x+)+y"])
    assert deny.denies("a" * 100_000 + "!") is None
    assert deny.denies("x" * 100_000) is None
    assert deny.denies("a" * 100_000) == r"/(a+)+$/"


@given(st.text())
def test_no_name_is_too_odd(name: str) -> None:
    DenyList(DEFAULT).denies(name)
    assert DenyList(["^"]).denies(name) == "^"


def test_a_name_that_is_no_text_is_tested_all_the_same() -> None:
    assert DenyList(DEFAULT).denies("\ud800.mcollective") == r"\.mcollective$"
