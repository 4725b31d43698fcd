"""A command line split into words, and strangers' text made printable."""

import pytest

from provisioner.command import split_command
from provisioner.printable import escaped


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("/opt/h", ("/opt/h",)),
        ('/opt/h "a b" c', ("/opt/h", "a b", "c")),
        ("/opt/h 'a\"b' c\\ d", ("/opt/h", 'a"b', "c d")),
        ("/opt/prov/helper.rb --site london", ("/opt/prov/helper.rb", "--site", "london")),
        ("  /opt/h\t''  ", ("/opt/h", "")),
        ("/opt/h ;|&$X`id`>x #y *", ("/opt/h", ";|&$X`id`>x", "#y", "*")),
    ],
)
def test_split_command(text: str, words: tuple[str, ...]) -> None:
    assert split_command(text) == words


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("/opt/h 'x", "a quote is not closed"),
        ('/opt/h "x', "a quote is not closed"),
        ("/opt/h \\", "ends in a backslash"),
        ("", "names no program"),
        (" \t\n", "names no program"),
        ("'' x", "names no program"),
        ("/opt/h\0", "has a NUL character"),
    ],
)
def test_split_command_refuses(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}$"):
        split_command(text)


def test_escaped_is_bounded_after_escaping() -> None:
    assert escaped("\0" * 10, 10) == "\\x00\\x00\\x" + "…"
    assert escaped("näh", 3) == "näh"


def test_escaped_without_a_limit_keeps_all() -> None:
    assert escaped("a" * 5000 + "\x1b[31m\u2028\u202e\ud800\x7f") == "a" * 5000 + r"\x1b[31m\u2028\u202e\ud800\x7f"
