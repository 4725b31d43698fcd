"""The token codec and the shapes of keys: the seed's example, both bijections, each refusal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.registry.keys import (
    APPLIED,
    COLLECT,
    MAX_KEY,
    NEEDS,
    REGISTRY,
    SHAPES,
    BadKey,
    BadName,
    decode_token,
    encode_token,
    quoted,
)

names = st.text(min_size=1, max_size=40)
tokens = st.text(alphabet="=0123456789ABCDEFabcz.-_/:é", max_size=12)


def test_the_example_of_the_contract() -> None:
    assert encode_token("shell:zsh:normal") == "shell=3Azsh=3Anormal"
    assert decode_token("shell=3Azsh=3Anormal") == "shell:zsh:normal"


@pytest.mark.parametrize(
    ("name", "token"),
    [
        ("az-AZ_09/x", "az-AZ_09/x"),
        ("a.b", "a=2Eb"),
        ("a=b", "a=3Db"),
        ("é", "=C3=A9"),
        ("*", "=2A"),
        (">", "=3E"),
        ("a b", "a=20b"),
        ("\0", "=00"),
        ("😀", "=F0=9F=98=80"),
    ],
)
def test_each_character_has_one_writing(name: str, token: str) -> None:
    assert encode_token(name) == token
    assert decode_token(token) == name


@given(names)
def test_every_name_is_read_back(name: str) -> None:
    assert decode_token(encode_token(name)) == name


@given(tokens | names.map(encode_token))
def test_every_token_that_is_read_is_written_the_same(token: str) -> None:
    try:
        name = decode_token(token)
    except BadKey:
        return
    assert encode_token(name) == token


@given(names)
def test_a_token_is_a_subject_token(name: str) -> None:
    assert set(encode_token(name)) <= set("=-_/0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")


@pytest.mark.parametrize(
    ("token", "why"),
    [
        ("", "a part is empty"),
        ("a=", "not followed by two upper-case"),
        ("a=3", "not followed by two upper-case"),
        ("a=3a", "not followed by two upper-case"),
        ("a=3g", "not followed by two upper-case"),
        ("==3A", "not followed by two upper-case"),
        ("=41", "=41 stands for A, which is written as it is"),
        ("=2D", "=2D stands for -, which is written as it is"),
        ("=FF", "does not stand for UTF-8"),
        ("=C3", "does not stand for UTF-8"),
        ("=C3x=A9", "does not stand for UTF-8"),
        ("=C0=80", "does not stand for UTF-8"),
        ("=ED=A0=80", "does not stand for UTF-8"),
        ("shell:zsh", '":" must be written by its bytes'),
        ("a*", '"*" must be written'),
        ("é", r'"\u00e9" must be written'),
        ("a\n", r'"\n" must be written'),
    ],
)
def test_strict_reading(token: str, why: str) -> None:
    with pytest.raises(BadKey) as refused:
        decode_token(token)
    assert why in str(refused.value)


@pytest.mark.parametrize("name", ["", "\ud800", "x" * (MAX_KEY + 1), ":" * 400])
def test_a_name_that_no_token_holds(name: str) -> None:
    with pytest.raises(BadName):
        encode_token(name)


def test_the_longest_name() -> None:
    assert decode_token(encode_token("x" * MAX_KEY)) == "x" * MAX_KEY


def test_the_four_buckets() -> None:
    assert {shape.bucket: len(shape.fields) for shape in SHAPES.values()} == {
        "mesh-provisioner_registry": 1,
        "mesh-provisioner_needs": 4,
        "mesh-provisioner_applied": 2,
        "mesh-provisioner_collect": 3,
    }


def test_keys_of_each_shape() -> None:
    assert REGISTRY.key("bound") == "bound"
    assert NEEDS.key("n1.example.net", "app", "bound", "db:main") == "n1=2Eexample=2Enet.app.bound.db=3Amain"
    assert APPLIED.names("n1.app") == ("n1", "app")
    assert COLLECT.names("n1.shell=3Azsh=3Anormal.zshmod") == ("n1", "shell:zsh:normal", "zshmod")


@given(st.lists(st.text(min_size=1, max_size=20), min_size=4, max_size=4))
def test_a_key_is_read_back(given_names: list[str]) -> None:
    assert NEEDS.names(NEEDS.key(*given_names)) == tuple(given_names)


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("n1", "1 part, a key of this bucket has 3"),
        ("n1.app", "2 parts, a key of this bucket has 3"),
        ("n1.a.b.c", "4 parts, a key of this bucket has 3"),
        ("n1..b", "a part is empty"),
        (".a.b", "a part is empty"),
        ("n1.shell:zsh.b", '":" must be written'),
        ("x." * 600 + "x", "1201 characters, a key has at most 768"),
    ],
)
def test_keys_out_of_shape(key: str, why: str) -> None:
    with pytest.raises(BadKey, match=why):
        COLLECT.names(key)


def test_a_whole_key_that_is_too_long() -> None:
    with pytest.raises(BadName, match="the key takes 903 bytes"):
        COLLECT.key("x" * 300, "y" * 301, "z" * 300)


def test_the_number_of_names_is_the_callers_business() -> None:
    with pytest.raises(TypeError, match="takes node, module"):
        APPLIED.key("n1")


@given(st.text(max_size=500))
def test_a_quotation_is_short_and_plain(text: str) -> None:
    assert len(quoted(text)) <= 200
    assert quoted(text).isascii()
    assert quoted(text).isprintable()
