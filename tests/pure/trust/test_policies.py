"""Names of policy files."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.errors import BadConfiguration
from provisioner.trust.policies import check_policies


def test_plain_names_with_the_agents_extension() -> None:
    check_policies({}, {})
    check_policies(
        {"package.policy": "policy default deny", "a b.policy": "", "ü.policy": "x", "a..policy": "x"},
        {"main.rego": "package x", "a.policy.rego": "", "x" * 250 + ".rego": "x"},
    )


@pytest.mark.parametrize(
    ("stem", "words"),
    [
        ("../x", "must be a plain name"),
        ("a/b", "must be a plain name"),
        ("/x", "must be a plain name"),
        ("a\\b", "must be a plain name"),
        ("..", "must be a plain name"),
        (".hidden", "must be a plain name"),
        ("", "with something before it"),
        ("x\n", "must be printable"),
        ("x\0", "must be printable"),
        ("\x1b[31m", "must be printable"),
        ("x\u202ey", "must be printable"),
        ("\ud800", "must be printable"),
        ("é" * 126, "at most 255 bytes"),
    ],
)
def test_names_that_lead_elsewhere(stem: str, words: str) -> None:
    with pytest.raises(BadConfiguration, match=rf"^action_policies: the file name '.*{words}"):
        check_policies({"fine.policy": "", f"{stem}.policy": ""}, {})
    with pytest.raises(BadConfiguration, match=rf"^opa_policies: the file name '.*{words}"):
        check_policies({}, {f"{stem}.rego": ""})


@pytest.mark.parametrize("name", ["x.rego", "x.policy\n", "x.policy ", "x.POLICY", "policy", "", "x.policy.bak", "x"])
def test_names_with_another_extension(name: str) -> None:
    with pytest.raises(BadConfiguration, match=r"must end in \.policy"):
        check_policies({name: ""}, {})


def test_each_kind_has_its_own_extension() -> None:
    with pytest.raises(BadConfiguration, match=r"opa_policies: the file name 'x\.policy' must end in \.rego"):
        check_policies({}, {"x.policy": ""})


@given(st.dictionaries(st.text(), st.text()), st.dictionaries(st.text(), st.text()))
def test_what_is_let_by_stays_in_its_directory(action: dict[str, str], opa: dict[str, str]) -> None:
    try:
        check_policies(action, opa)
    except BadConfiguration:
        return
    assert not any("/" in name or name.startswith(".") for name in [*action, *opa])
