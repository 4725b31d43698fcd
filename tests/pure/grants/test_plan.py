"""Plans: wanted and existing in, steps out (mesh.md A5.3 to A5.11)."""

from typing import Any

import pytest
from attrs import evolve

from provisioner.grants import mark, plan
from provisioner.grants.catalogue import Catalogue, Database, Role, Server
from provisioner.grants.manifest import Consumer, Manifest, Refused
from provisioner.grants.plan import Plan, Policy
from provisioner.grants.steps import (
    CreateDatabase,
    CreateGroup,
    CreateLogin,
    DropInvalid,
    Extend,
    Hold,
    Join,
    Reclaim,
    Return,
    SetLogin,
    SettleDatabase,
    Share,
    WriteMark,
)

WIKI = Consumer("n1", "wiki", "wiki")
MAIL = Consumer("n2", "mail", "n2.mail")
READER = Consumer("n3", "web", "wiki", "readonly")
NEW = ("comment", "close", "admit", "open")
SINCE = "2026-01-31T12:00:00+00:00"


def role(oid: int, label: mark.Mark, **more: Any) -> Role:
    return Role(oid=oid, name=label.role, login=isinstance(label, mark.Login), mark=label, **more)


def catalogue(*roles: Role, databases: tuple[Database, ...] = (), members: Any = ()) -> Catalogue:
    return Catalogue(
        Server(150018, "provisioner"),
        {each.name: each for each in roles},
        {each.name: each for each in databases},
        frozenset(members),
    )


LOGIN = role(1, mark.Login("n1", "wiki"), owns=True)
KEPT = role(2, mark.Kept("n1", "wiki", SINCE), owns=True)
OWNED = Database(10, "wiki", owner=1)
GROUPS = (role(5, mark.Group("wiki", "ro")), role(6, mark.Group("wiki", "rw")))


def decide(found: Catalogue, *consumers: Consumer, refused: tuple[Refused, ...] = (), **policy: Any) -> Plan:
    return plan.plan(Manifest(consumers, refused), found, Policy(**policy))


def steps(found: Catalogue, *consumers: Consumer, **policy: Any) -> tuple[Any, ...]:
    last = decide(found, *consumers, **policy).services[-1]
    assert last.why is None, last.why
    return last.steps


def why(found: Catalogue, *consumers: Consumer, **policy: Any) -> str:
    last = decide(found, *consumers, **policy).services[-1]
    assert last.steps == ()
    return last.why or ""


def removed(decided: Plan) -> list[tuple[str, str]]:
    return [(each.what, each.name) for each in decided.removals]


# --- a consumer ------------------------------------------------------------------------------------------------------


def test_on_an_empty_server() -> None:
    assert steps(catalogue(), WIKI) == (CreateLogin(), CreateDatabase("wiki"), SettleDatabase("wiki", NEW))


def test_when_nothing_has_changed_the_password_is_set_and_nothing_else() -> None:
    decided = decide(catalogue(LOGIN, databases=(OWNED,)), WIKI)
    assert decided.services[0].steps == (SetLogin(),)
    assert not decided.services[0].drifted
    assert decided.removals == ()
    assert decided.retained == ()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"login": False}, (SetLogin(drift=True),)),
        ({"limited": True}, (SetLogin(drift=True),)),
        ({"held": False}, (Hold("n1.wiki"), SetLogin())),
        ({"stale": True}, (SetLogin(), WriteMark())),
    ],
)
def test_a_login_that_is_not_as_it_should_be(change: dict[str, Any], expected: tuple[Any, ...]) -> None:
    decided = decide(catalogue(evolve(LOGIN, **change), databases=(OWNED,)), WIKI)
    assert decided.services[0].steps == expected
    assert decided.services[0].drifted


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"commented": False}, ("comment",)),
        ({"public": True}, ("close",)),
        ({"owner_may_enter": False}, ("admit",)),
        ({"template": True}, ("template",)),
        ({"open": False}, ("open",)),
        ({"open": False, "public": True, "commented": False}, ("comment", "close", "open")),
    ],
)
def test_a_database_that_is_not_as_it_should_be(change: dict[str, Any], parts: tuple[str, ...]) -> None:
    found = catalogue(LOGIN, databases=(evolve(OWNED, **change),))
    assert steps(found, WIKI) == (SetLogin(), SettleDatabase("wiki", parts))


def test_a_half_dropped_database_is_made_anew() -> None:
    found = catalogue(LOGIN, databases=(evolve(OWNED, invalid=True, open=False),))
    assert steps(found, WIKI)[1:] == (DropInvalid("wiki"), CreateDatabase("wiki"), SettleDatabase("wiki", NEW))


def test_a_consumer_that_is_back_gets_its_data() -> None:
    found = catalogue(KEPT, databases=(evolve(OWNED, owner=2),))
    assert steps(found, WIKI) == (Return("n1.wiki~kept"), SetLogin(drift=True))


def test_a_login_beside_the_role_that_kept_its_data() -> None:
    found = catalogue(evolve(LOGIN, owns=False), KEPT, databases=(evolve(OWNED, owner=2),))
    assert steps(found, WIKI) == (SetLogin(), Reclaim("n1.wiki~kept"))


FOREIGN = Role(oid=9, name="n1.wiki", login=True)


@pytest.mark.parametrize(
    "stranger",
    [
        FOREIGN,
        evolve(FOREIGN, mark=mark.Login("n2", "mail")),  # another's mark, copied
        evolve(FOREIGN, mark=mark.Group("n1.wiki", "ro")),
    ],
)
def test_a_role_that_we_did_not_make_is_left_alone(stranger: Role) -> None:
    assert why(catalogue(stranger), WIKI) == ("a role called n1.wiki exists and this provisioner did not make it")
    assert removed(decide(catalogue(stranger))) == []


def test_a_database_that_we_did_not_make_is_left_alone() -> None:
    for found in (catalogue(databases=(OWNED,)), catalogue(LOGIN, databases=(evolve(OWNED, owner=77),))):
        assert why(found, WIKI) == "a database called wiki exists and this provisioner did not make it"


def test_a_database_of_another_consumer_is_left_alone() -> None:
    other = role(3, mark.Login("n2", "mail"))
    assert why(catalogue(other, databases=(evolve(OWNED, owner=3),)), WIKI) == "the database wiki belongs to n2.mail"


@pytest.mark.parametrize("power", ["SUPERUSER", "CREATEROLE", "CREATEDB", "REPLICATION", "BYPASSRLS"])
def test_a_login_that_was_given_powers_is_told_whether_it_is_asked_for_or_not(power: str) -> None:
    found = catalogue(evolve(LOGIN, powers=(power,)), databases=(OWNED,))
    assert power in why(found, WIKI)
    (gone,) = decide(found).removals
    assert gone.name == "n1.wiki"
    assert power in (gone.why or "")


def test_a_role_out_of_our_hands_is_told_with_the_statement_that_helps() -> None:
    found = catalogue(evolve(LOGIN, administered=False, held=False), databases=(OWNED,))
    assert 'GRANT "n1.wiki" TO "provisioner" WITH ADMIN OPTION' in why(found, WIKI)


def test_extensions_need_the_operator_s_leave() -> None:
    wants = evolve(WIKI, extensions=("citext", "dblink"))
    assert why(catalogue(), wants, extensions=frozenset({"citext"})) == (
        "asks for the extension 'dblink', which --extensions doesn't allow"
    )
    assert steps(catalogue(LOGIN, databases=(OWNED,)), wants, extensions=frozenset({"citext", "dblink"})) == (
        SetLogin(),
        Extend("wiki", ("citext", "dblink")),
    )


# --- a reader --------------------------------------------------------------------------------------------------------


def test_a_reader_of_a_new_database() -> None:
    assert steps(catalogue(), WIKI, READER) == (
        CreateLogin(),
        CreateGroup(mark.Group("wiki", "ro")),
        CreateGroup(mark.Group("wiki", "rw")),
        Share("wiki"),
        Join("wiki~ro"),
    )


def test_a_reader_that_may_write_now() -> None:
    web = role(3, mark.Login("n3", "web"))
    found = catalogue(LOGIN, web, *GROUPS, databases=(OWNED,), members=[("wiki~ro", "n3.web")])
    assert steps(found, WIKI, evolve(READER, access="readwrite")) == (
        SetLogin(),
        Share("wiki"),
        Join("wiki~rw", ("wiki~ro",)),
    )
    assert steps(found, WIKI, READER) == (SetLogin(), Share("wiki"))


def test_a_reader_that_owns_now_leaves_the_group() -> None:
    web = role(3, mark.Login("n3", "web"))
    found = catalogue(LOGIN, web, *GROUPS, databases=(OWNED,), members=[("wiki~ro", "n3.web")])
    assert steps(found, WIKI, Consumer("n3", "web", "n3.web"))[-1] == Join(None, ("wiki~ro",))


def test_nobody_reads_what_nobody_owns() -> None:
    assert why(catalogue(), READER) == "no consumer of the manifest owns a database called wiki"
    kept = catalogue(KEPT, databases=(evolve(OWNED, owner=2),))
    assert why(kept, READER) == "no consumer of the manifest owns a database called wiki"


def test_the_owner_s_entry_is_bad_and_its_database_is_there() -> None:
    found = catalogue(LOGIN, *GROUPS, databases=(OWNED,))
    decided = decide(found, READER, refused=(Refused("n1", "wiki", "its secret is empty"),))
    assert decided.services[0].why is None


def test_a_reader_is_told_why_the_owner_has_no_database() -> None:
    assert "exists and this provisioner did not make it" in why(catalogue(FOREIGN), WIKI, READER)


# --- what goes -------------------------------------------------------------------------------------------------------


def test_whoever_is_not_asked_for_goes() -> None:
    decided = decide(catalogue(LOGIN, databases=(OWNED,)), MAIL)
    assert removed(decided) == [("login", "n1.wiki")]
    assert decided.removals[0].databases == ("wiki",)


def test_a_consumer_that_can_not_be_served_is_not_removed() -> None:
    found = catalogue(LOGIN, KEPT, databases=(OWNED,))
    assert removed(decide(found, refused=(Refused("n1", "wiki", "x"),), on_revoke="drop")) == []


def test_groups_go_with_their_last_reader_but_not_while_an_entry_is_unknown() -> None:
    found = catalogue(LOGIN, *GROUPS, databases=(OWNED,))
    assert removed(decide(found, WIKI)) == [("group", "wiki~ro"), ("group", "wiki~rw")]
    assert removed(decide(found, WIKI, READER)) == []
    assert removed(decide(found, WIKI, refused=(Refused("n3", "web", "x"),))) == []


def test_kept_data_stays_and_is_told_until_it_is_to_be_dropped() -> None:
    found = catalogue(KEPT, databases=(evolve(OWNED, owner=2),))
    decided = decide(found)
    assert removed(decided) == []
    assert decided.retained == (plan.Retained("n1.wiki~kept", ("wiki",), SINCE),)
    assert removed(decide(found, on_revoke="drop")) == [("kept", "n1.wiki~kept")]


def test_a_keeper_of_nothing_goes() -> None:
    assert removed(decide(catalogue(evolve(KEPT, owns=False)))) == [("kept", "n1.wiki~kept")]


def test_a_keeper_of_nothing_yet_stays_for_its_login() -> None:
    found = catalogue(LOGIN, evolve(KEPT, owns=False), databases=(OWNED,))
    assert removed(decide(found)) == [("login", "n1.wiki")]
    assert removed(decide(found, on_revoke="drop")) == [("login", "n1.wiki"), ("kept", "n1.wiki~kept")]


def test_a_database_asked_for_no_more_by_a_login_that_stays() -> None:
    found = catalogue(LOGIN, databases=(OWNED, Database(11, "wiki2", owner=1)))
    asks_other = evolve(WIKI, database="wiki2")
    assert decide(found, asks_other).retained == (plan.Retained("n1.wiki", ("wiki",)),)
    assert removed(decide(found, asks_other, on_revoke="drop")) == [("database", "wiki")]


def test_a_half_dropped_database_goes_whatever_the_policy() -> None:
    half = evolve(OWNED, invalid=True, open=False)
    assert removed(decide(catalogue(LOGIN, databases=(half,)))) == [("database", "wiki"), ("login", "n1.wiki")]
    assert removed(decide(catalogue(LOGIN, databases=(half,)), evolve(WIKI, database="other"))) == [
        ("database", "wiki")
    ]
    assert removed(decide(catalogue(LOGIN, databases=(half,)), WIKI)) == []
    assert removed(decide(catalogue(LOGIN, databases=(half,)), refused=(Refused("n1", "wiki", "x"),))) == []
    kept = catalogue(KEPT, databases=(evolve(half, owner=2),))
    assert removed(decide(kept)) == [("database", "wiki")]
    assert removed(decide(kept, on_revoke="drop")) == [("database", "wiki"), ("kept", "n1.wiki~kept")]


def test_an_illegible_entry_withholds_all_removals() -> None:
    decided = plan.plan(Manifest((), illegible=("entry 1: has no node",)), catalogue(LOGIN), Policy())
    assert removed(decided) == [("login", "n1.wiki")]
    assert "entry 1: has no node" in (decided.withheld or "")


def test_more_than_the_bound_withholds_all_removals() -> None:
    found = catalogue(LOGIN, role(3, mark.Login("n2", "mail")))
    assert decide(found, max_remove=2).withheld is None
    assert decide(found, max_remove=1).withheld == "2 would be removed, and --max-remove allows 1"
    assert decide(catalogue(), max_remove=0).withheld is None
