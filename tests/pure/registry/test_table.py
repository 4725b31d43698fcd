"""The thirteen kinds: what the contract fixes about them, the constructor's refusals, reading and locating."""

import json

import pytest

from provisioner.registry.keys import BadName
from provisioner.registry.table import TABLE, Bucket, Kind, Verb, wanted

by_name = {kind.kind: kind for kind in TABLE}


def test_the_thirteen_kinds_in_their_order() -> None:
    assert [kind.kind for kind in TABLE] == [
        "config", "secret", "bound", "consumers", "collected", "shell", "environment", "contribution",
        "dir", "access", "port", "seat", "machine",
    ]  # fmt: skip
    assert list(wanted()) == [kind.kind for kind in TABLE]


def test_bytes_are_canonical() -> None:
    assert wanted()["bound"] == (
        b'{"from":{"bucket":"{provider}_bound","key":"{node}.{module}.{provision}[.{local}]"},'
        b'"kind":"bound","owner":"mesh-provisioner"}'
    )
    assert wanted()["secret"] == b'{"from":{"verb":"vault.secret"},"kind":"secret","owner":"vault"}'
    assert json.loads(wanted()["port"]) == {
        "kind": "port",
        "owner": "mesh-controller",
        "from": {"bucket": "mesh-controller_assignments", "key": "{node}.{module}", "path": ["plan", "port"]},
    }
    assert json.loads(wanted()["shell"])["from"] == {
        "bucket": "mesh-provisioner_collect",
        "key": "{node}.{collection}.{contributor}",
        "collection": "shell:{name}",
    }


@pytest.mark.parametrize("kind", ["secret", "consumers"])
def test_a_secret_is_never_in_a_bucket(kind: str) -> None:
    with pytest.raises(ValueError, match="never in a bucket"):
        Kind(kind, "vault", Bucket("vault_values", "{node}"))
    assert isinstance(by_name[kind].source, Verb)
    stored = json.dumps({"kind": kind, "owner": "vault", "from": {"bucket": "b", "key": "k"}}).encode()
    with pytest.raises(ValueError, match="never in a bucket"):
        Kind.decode(stored)


def test_the_same_kind_twice() -> None:
    with pytest.raises(ValueError, match="twice"):
        wanted((*TABLE, TABLE[0]))


@pytest.mark.parametrize(
    ("kind", "owner", "source"),
    [
        ("", "o", Verb("v")),
        ("k", "", Verb("v")),
        ("k", "o", Verb("")),
        ("k", "o", Bucket("", "k")),
        ("k", "o", Bucket("b", "")),
    ],
)
def test_an_incomplete_kind(kind: str, owner: str, source: Bucket | Verb) -> None:
    with pytest.raises(ValueError, match="needs a name, an owner and a source"):
        Kind(kind, owner, source)


@pytest.mark.parametrize("kind", TABLE, ids=lambda kind: kind.kind)
def test_each_is_read_back(kind: Kind) -> None:
    assert Kind.decode(kind.encode()) == kind


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"nonsense",
        b"[]",
        b"{}",
        b'{"kind":"a","owner":"b"}',
        b'{"kind":1,"owner":"b","from":{"verb":"v"}}',
        b'{"kind":"a","owner":"b","from":{}}',
        b'{"kind":"a","owner":"b","from":{"verb":"v","bucket":"b","key":"k"}}',
        b'{"kind":"a","owner":"b","from":{"bucket":"b"}}',
        b'{"kind":"a","owner":"b","from":{"bucket":"b","key":"k","path":"plan"}}',
        b'{"kind":"a","owner":"b","from":{"bucket":"b","key":"k","path":[1]}}',
        b'{"kind":"a","owner":"b","from":{"bucket":"b","key":"k","collection":1}}',
        b'{"kind":"a","owner":"b","from":{"bucket":"b","key":"k","more":1}}',
        b'{"kind":"a","owner":"b","from":{"verb":"v"},"more":1}',
    ],
)
def test_values_that_are_no_kind(value: bytes) -> None:
    with pytest.raises(ValueError):
        Kind.decode(value)


def located(kind: str, **names: str) -> tuple[str, str]:
    source = by_name[kind].source
    assert isinstance(source, Bucket)
    return source.locate(**names)


def test_locating_a_value() -> None:
    names = {"node": "n1.example.net", "module": "app", "provider": "postgres", "provision": "database"}
    assert located("bound", **names) == ("postgres_bound", "n1=2Eexample=2Enet.app.database")
    assert located("bound", **names, local="db:x") == ("postgres_bound", "n1=2Eexample=2Enet.app.database.db=3Ax")
    assert located("bound", **names, local="") == ("postgres_bound", "n1=2Eexample=2Enet.app.database")
    assert located("port", node="n1", module="app") == ("mesh-controller_assignments", "n1.app")


def test_locating_an_item_of_a_collection() -> None:
    bucket = "mesh-provisioner_collect"
    assert located("shell", node="n1", name="zsh:normal", contributor="m") == (bucket, "n1.shell=3Azsh=3Anormal.m")
    assert located("collected", node="n1", name="hosts", contributor="m") == (bucket, "n1.hosts.m")


def test_locating_with_a_name_missing_or_unfit() -> None:
    with pytest.raises(BadName, match="module is needed"):
        located("port", node="n1")
    with pytest.raises(BadName, match="only letters, digits"):
        located("bound", node="n1", module="app", provider="a.b", provision="d")


def test_a_name_can_not_open_another_hole() -> None:
    assert (
        located("collected", node="{node}", name="{contributor}", contributor="m")[1]
        == "=7Bnode=7D.=7Bcontributor=7D.m"
    )
