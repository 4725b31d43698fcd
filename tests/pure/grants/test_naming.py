"""Names within 63 bytes (mesh.md A5.6)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.grants import naming


def test_a_short_name_is_the_stem_of_the_secret_file() -> None:
    assert naming.login_name("n1", "wiki") == "n1.wiki"
    assert naming.secret_file("n1", "wiki") == "n1.wiki.secret"


def test_63_bytes_are_kept_and_64_are_shortened() -> None:
    assert naming.login_name("a" * 61, "b") == "a" * 61 + ".b"
    # sha256 of 62 times a, and ".b": worked out with sha256sum
    assert naming.login_name("a" * 62, "b") == "a" * 46 + "~dd4c486c8a941653"


def test_two_names_with_the_same_first_63_bytes_are_two() -> None:
    first, second = naming.login_name("a" * 63, "x"), naming.login_name("a" * 63, "y")
    assert first != second
    assert len(first) == len(second) == 63


def test_a_cut_falls_between_characters() -> None:
    name = naming.login_name("x" + "é" * 32, "m")
    assert name.startswith("x" + "é" * 22 + "~")
    assert len(name.encode()) == 62


def test_kept_and_group_names_can_not_be_logins() -> None:
    assert naming.kept_name("n1", "wiki") == "n1.wiki~kept"
    assert naming.group_name("wiki", "ro") == "wiki~ro"
    assert naming.name_fault("wiki~ro", dots=True)
    assert len(naming.kept_name("n" * 60, "w").encode()) == 63


NAMES = st.text(min_size=1, max_size=90).filter(lambda each: naming.name_fault(each, dots=True) is None)


@given(NAMES, NAMES.filter(lambda each: "." not in each))
def test_every_name_fits_and_none_is_cut_inside_a_character(node: str, module: str) -> None:
    for name in (naming.login_name(node, module), naming.kept_name(node, module), naming.group_name(node, "rw")):
        assert len(name.encode()) <= 63


@given(NAMES, NAMES)
def test_the_first_part_ends_at_the_last_dot(node: str, module: str) -> None:
    if "." in module:
        assert naming.name_fault(module, dots=False) == "has a dot"
    else:
        assert f"{node}.{module}".rpartition(".") == (node, ".", module)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (None, "must be text"),
        (7, "must be text"),
        ("", "is empty"),
        (".", "can't be part of a file name"),
        ("..", "can't be part of a file name"),
        ("a/b", "can't be part of a file name"),
        ("a\0b", "has a control character"),
        ("a\nb", "has a control character"),
        ("a\x9bb", "has a control character"),
        ("a~b", "has a ~, which is reserved for names that this program shortens"),
    ],
)
def test_names_that_can_not_be(text: object, fault: str) -> None:
    assert naming.name_fault(text, dots=True) == fault


@pytest.mark.parametrize("name", ["a-b", "A", 'a"b', "a'b", "a b", "$x", "%s", "sélect", "1a", "user", "a\\b", "a=b,c"])
def test_odd_names_that_can_be(name: str) -> None:
    assert naming.name_fault(name, dots=False) is None
    assert naming.database_fault(name) is None


@pytest.mark.parametrize("name", ["postgres", "template0", "Template1", "x" * 64, "é" * 32, "a\tb", "", None])
def test_databases_that_can_not_be(name: object) -> None:
    assert naming.database_fault(name)


@pytest.mark.parametrize("name", ["pg_x", "pg_", "public", "PUBLIC", "none", "current_user", "Session_User", "user"])
def test_roles_that_can_not_be(name: str) -> None:
    assert naming.role_fault(name)


def test_the_prefix_is_reserved_as_it_is_written_only() -> None:
    assert naming.role_fault("PG_x") is None
    assert naming.role_fault("n1.user") is None
