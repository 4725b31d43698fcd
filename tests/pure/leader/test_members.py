"""Who is there and whose server is whose."""

from collections import Counter

import pytest

from provisioner.errors import BadReply
from provisioner.leader.members import MEMBERS_LIMIT, Members, SignOfLife, decode

SERVERS = [f"n{i}.example.net" for i in range(3000)]


def sign(identity: str, *, instance: str = "", started: float = 100.0, leaving: bool = False) -> SignOfLife:
    return SignOfLife(identity, instance or identity, started, leaving)


def together(*names: str) -> list[Members]:
    found = [Members(sign(name)) for name in names]
    for one in found:
        for other in found:
            one.hear(other.me, 0.0)
    return found


def test_alone_everything_is_ours() -> None:
    (alone,) = together("a")
    assert all(alone.mine(server) for server in SERVERS)


def test_each_server_has_exactly_one_owner_and_the_shares_are_even() -> None:
    three = together("a", "b", "c")
    shares = Counter(sum(one.mine(server) for one in three) for server in SERVERS)
    assert shares == {1: 3000}
    # A fair draw of 3,000 among three: 1,000 each, give or take six standard deviations.
    assert all(840 < sum(one.mine(server) for server in SERVERS) < 1160 for one in three)


def test_when_a_member_leaves_only_its_own_servers_move() -> None:
    a, b, _ = together("a", "b", "c")
    before = {server: a.owner(server) for server in SERVERS}
    for one in (a, b):
        assert one.hear(sign("c", leaving=True), 1.0)
    moved = {server for server in SERVERS if a.owner(server) != before[server]}
    assert moved == {server for server, owner in before.items() if owner == "c"}


def test_a_member_that_falls_silent_is_out_after_three_periods() -> None:
    a, _ = together("a", "b")
    assert a.expire(15.0) == []
    assert a.expire(15.1) == ["b"]
    assert a.identities == ("a",)
    assert a.hear(sign("b"), 16.0)


def test_a_sign_of_life_is_news_only_once() -> None:
    a = Members(sign("a"))
    assert a.hear(sign("b"), 0.0)
    assert not a.hear(sign("b"), 5.0)
    assert not a.hear(sign("a"), 5.0)
    assert not a.hear(sign("never.seen", leaving=True), 5.0)


def test_of_two_with_one_identity_the_later_stands_aside() -> None:
    elder = Members(sign("a", instance="x", started=100.0))
    younger = Members(sign("a", instance="y", started=101.0))
    elder.hear(younger.me, 0.0)
    younger.hear(elder.me, 0.0)
    assert elder.elder_twin() is None
    assert younger.elder_twin() == elder.me
    younger.hear(sign("a", instance="x", leaving=True), 1.0)
    assert younger.elder_twin() is None


def test_the_list_is_bounded() -> None:
    a = Members(sign("a"))
    for i in range(MEMBERS_LIMIT + 50):
        a.hear(sign(f"m{i}"), 0.0)
    assert len(a.identities) == MEMBERS_LIMIT + 1


def test_a_sign_is_read_back() -> None:
    one = sign("a.example.net", leaving=True)
    assert decode(one.encode()) == one


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"null",
        b"{}",
        b'{"identity":"a b","instance":"x","started":1,"leaving":false}',
        b'{"identity":"a","instance":1,"started":1,"leaving":false}',
        b'{"identity":"a","instance":"x","started":true,"leaving":false}',
        b'{"identity":"a","instance":"x","started":1,"leaving":0}',
        b'{"identity":"a","instance":"' + b"x" * 65 + b'","started":1,"leaving":false}',
        b" " * 5000,
    ],
)
def test_what_is_no_sign_of_life(data: bytes) -> None:
    with pytest.raises(BadReply):
        decode(data)
