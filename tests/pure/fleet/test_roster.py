"""Admission, the known-set and the queue as one thing (issue: noticing; cases A 1-5)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provisioner.fleet.roster import Admission, Roster

INTERVAL = 60.0
names = st.sampled_from([f"n{i}.example.net" for i in range(6)])


def roster(limit: int = 100) -> Roster:
    return Roster(INTERVAL, limit=limit)


def take(r: Roster, now: float) -> str:
    identity = r.next()
    assert identity is not None
    assert r.begin(identity, now) is None
    return identity


def test_a_new_server_is_admitted_and_waits_its_turn() -> None:
    r = roster()
    assert r.admit("a", "discovery", 0) is Admission.ADMITTED
    assert r.admit("b", "discovery", 1) is Admission.ADMITTED
    assert r.waiting == 2
    assert [take(r, 2), take(r, 2)] == ["a", "b"]
    assert r.next() is None
    assert r.counts() == {"waiting": 0, "working": 2, "resting": 0}


def test_within_an_interval_a_second_sighting_is_a_duplicate() -> None:
    r = roster()
    r.admit("a", "discovery", 0)
    assert r.admit("a", "event", 59.9) is Admission.DUPLICATE
    assert r.waiting == 1


def test_after_an_interval_the_new_sighting_replaces_the_old_and_keeps_the_turn() -> None:
    r = roster()
    r.admit("a", "discovery", 0)
    r.admit("b", "discovery", 1)
    assert r.admit("a", "discovery", 60) is Admission.REFRESHED
    assert take(r, 150) == "a"  # 150 s after the first sighting, 90 s after the second: not stale


def test_waiting_over_two_intervals_is_stale_and_forgotten() -> None:
    r = roster()
    r.admit("a", "discovery", 0)
    assert r.next() == "a"
    assert r.begin("a", 120.5) == 120.5
    assert "a" not in r
    assert r.waiting == 0
    assert r.admit("a", "discovery", 121) is Admission.ADMITTED


def test_exactly_two_intervals_is_not_stale() -> None:
    r = roster()
    r.admit("a", "discovery", 0)
    assert r.next() == "a"
    assert r.begin("a", 120.0) is None


def test_a_full_roster_refuses_and_does_not_note() -> None:
    r = roster(limit=2)
    r.admit("a", "discovery", 0)
    r.admit("b", "discovery", 0)
    assert r.admit("c", "discovery", 0) is Admission.ROSTER_FULL
    assert "c" not in r
    take(r, 1)
    r.finish("a", 2)
    assert r.admit("c", "discovery", 3) is Admission.ADMITTED
    assert [take(r, 4), take(r, 4)] == ["b", "c"]


def test_a_server_that_restarts_is_not_taken_twice() -> None:
    r = roster()
    r.admit("a", "discovery", 0)
    take(r, 0)
    r.finish("a", 10, rest=60)
    assert r.admit("a", "discovery", 40) is Admission.RESTING
    assert r.admit("a", "event", 69.9) is Admission.RESTING
    assert r.admit("a", "discovery", 70) is Admission.ADMITTED


def test_a_server_at_work_is_not_queued_again() -> None:
    r = roster()
    r.admit("a", "discovery", 0)
    take(r, 0)
    assert r.admit("a", "event", 300) is Admission.DUPLICATE
    assert r.next() is None


def test_a_failed_server_is_seen_again_at_once_but_after_the_others() -> None:
    r = roster()
    r.admit("dead", "discovery", 0)
    take(r, 0)
    r.finish("dead", 1, failed=True)
    assert r.admit("dead", "discovery", 2) is Admission.ADMITTED
    for i in range(3):
        r.admit(f"n{i}", "discovery", 2)
    order = [take(r, 3) for _ in range(4)]
    assert set(order[:2]) == {"dead", "n0"}  # one place each in turn, not the whole queue
    assert order[2:] == ["n1", "n2"]


def test_a_flood_of_events_does_not_starve_the_discovered() -> None:
    r = roster(limit=1000)
    for i in range(500):
        r.admit(f"dead{i}", "event", 0)
    r.admit("alive", "discovery", 0)
    assert "alive" in {take(r, 1), take(r, 1)}


def test_a_locked_server_is_not_taken_by_an_event_before_the_next_discovery() -> None:
    r = roster()
    r.admit("a", "event", 0)
    take(r, 0)
    r.finish("a", 1, locked=True)
    assert r.admit("a", "event", 2) is Admission.RESTING
    r.begin_discovery(60)
    assert r.admit("a", "event", 61) is Admission.ADMITTED


def test_rests_that_are_over_are_forgotten_at_the_next_sweep() -> None:
    r = roster()
    r.admit("a", "discovery", 0)
    take(r, 0)
    r.finish("a", 0, rest=60)
    r.begin_discovery(59)
    assert len(r) == 1
    r.begin_discovery(60)
    assert len(r) == 0


@pytest.mark.parametrize("identity", ["", "a b", "a..b", ".a", "a.", "*", "a.>", "n\n", "nöde", "x" * 256])
def test_what_cannot_be_a_subject_is_refused_at_the_door(identity: str) -> None:
    r = roster()
    assert r.admit(identity, "event", 0) is Admission.BAD_IDENTITY
    assert len(r) == 0


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["admit", "take", "done", "fail", "sweep"]), names, st.floats(0, 90)), max_size=60
    )
)
def test_known_is_waiting_or_working_or_resting_and_never_two(events: list[tuple[str, str, float]]) -> None:
    r, now, working, queued = Roster(INTERVAL, limit=4), 0.0, [], set()
    for what, name, passed in events:
        now += passed
        if what == "admit":
            if r.admit(name, "discovery", now) is Admission.ADMITTED:
                assert name not in queued
                assert name not in working
                queued.add(name)
        elif what == "take" and (taken := r.next()) is not None:
            queued.remove(taken)
            if r.begin(taken, now) is None:
                working.append(taken)
        elif what in {"done", "fail"} and working:
            r.finish(working.pop(0), now, rest=60 if what == "done" else 0, failed=what == "fail")
        elif what == "sweep":
            r.begin_discovery(now)
        counts = r.counts()
        assert sum(counts.values()) == len(r) <= 4
        assert counts["waiting"] == len(queued)
        assert counts["working"] == len(working)
        assert all(name in r for name in [*queued, *working])
