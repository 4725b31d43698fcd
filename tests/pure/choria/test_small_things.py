"""Ids, subjects, durations, back-off, host lists: one table each."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.choria import ids, subjects
from provisioner.choria.backoff import FIVE_SEC, TWENTY_SEC
from provisioner.choria.hosts import broker_url
from provisioner.durations import parse_duration

# --- ids -------------------------------------------------------------------------------------------------------------


@given(st.integers(1_400_000_000, 1_400_000_000 + (1 << 32) - 1), st.binary(min_size=16, max_size=16))
def test_ksuid_round_trip(seconds: int, payload: bytes) -> None:
    text = ids.ksuid(seconds, payload)
    assert len(text) == 27
    assert ids.parse_ksuid(text) == (seconds, payload)


@given(st.lists(st.integers(1_400_000_000, 2_000_000_000), min_size=2, max_size=2))
def test_ksuids_sort_by_time(seconds: list[int]) -> None:
    first, second = sorted(seconds)
    assert ids.ksuid(first, b"\xff" * 16) <= ids.ksuid(second + 1, bytes(16))


@pytest.mark.parametrize(
    ("seconds", "size"), [(1_399_999_999, 16), (1_400_000_000 + (1 << 32), 16), (1_700_000_000, 15)]
)
def test_no_ksuid(seconds: int, size: int) -> None:
    with pytest.raises(ValueError, match="no KSUID for"):
        ids.ksuid(seconds, bytes(size))


@pytest.mark.parametrize(
    "text", ["", "0" * 26, "0" * 28, "0" * 26 + "-", "0" * 26 + "ä", "z" * 27, "aWgEPTl1tmebfsQzFP4bxwgy80W"]
)
def test_not_a_ksuid(text: str) -> None:
    with pytest.raises(ValueError, match="not a KSUID"):
        ids.parse_ksuid(text)


@pytest.mark.parametrize("identity", ["n1", "n1.example.net", "a" * 255, "N_1-x.$y/z:1", "10.0.0.1", "~!"])
def test_good_identities(identity: str) -> None:
    assert ids.identity_problem(identity) is None


@pytest.mark.parametrize(
    ("identity", "problem"),
    [
        ("", "it is empty"),
        ("a" * 256, "it has 256 bytes, more than 255"),
        ("nä1", "it has a character outside ASCII"),
        ("n1\u2028", "it has a character outside ASCII"),
        ("n 1", "it has a blank or a control character"),
        ("n1\n", "it has a blank or a control character"),
        ("\x00", "it has a blank or a control character"),
        ("n1\x7f", "it has a blank or a control character"),
        ("*", "it has a wildcard"),
        ("n*1", "it has a wildcard"),
        ("a.>", "it has a wildcard"),
        (".", "it has nothing before, between or after its dots"),
        (".n1", "it has nothing before, between or after its dots"),
        ("n1.", "it has nothing before, between or after its dots"),
        ("a..b", "it has nothing before, between or after its dots"),
    ],
)
def test_bad_identities(identity: str, problem: str) -> None:
    assert ids.identity_problem(identity) == problem


# --- subjects --------------------------------------------------------------------------------------------------------


def test_subjects() -> None:
    assert subjects.node("n1.example.net") == "provisioning.node.n1.example.net"
    assert subjects.broadcast("discovery") == "provisioning.broadcast.agent.discovery"
    assert subjects.broadcast("rpcutil", "c") == "c.broadcast.agent.rpcutil"
    assert subjects.reply_prefix("provisioner_signer") == "provisioning.reply.22ec67b1822edddbee1f71725ee3827c"
    assert subjects.reply("choria=rip.mcollective", "x") == "provisioning.reply.37bdf08389145a56c13096c178802d3b.x"
    assert subjects.event("alive", "server") == "choria.lifecycle.event.alive.server"


# --- durations -------------------------------------------------------------------------------------------------------

HOUR = 3600.0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("", 0.0),
        ("  ", 0.0),
        ("1s", 1.0),
        (" 10m ", 600.0),
        ("1h30m", 5400.0),
        ("100ms", 0.1),
        ("1.5h", 5400.0),
        (".5s", 0.5),
        ("5.s", 5.0),
        ("-1m", -60.0),
        ("+1m", 60.0),
        ("1us", 1e-6),
        ("1µs", 1e-6),
        ("2w", 336 * HOUR),
        ("2W", 336 * HOUR),
        ("1d", 24 * HOUR),
        ("1D", 24 * HOUR),
        ("0.5d", 12 * HOUR),
        ("0.01d", 0.0),
        ("6M", 4320 * HOUR),
        ("1y", 8760 * HOUR),
        ("1Y", 8760 * HOUR),
        ("-1d", -24 * HOUR),
        ("0.1y", 876 * HOUR),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds, abs=1e-12)


@pytest.mark.parametrize(
    "text",
    ["1", "x", "1x", "s", "ms", "1S", "1H", "1d12h", "1w2d", "d", "1 d", "1e3d", "nand", "infd", "1s1", "1h 30m",
     "--1s", "1_0d", "300y", "9999999999h", "1" * 45 + "d", "1" * 200 + "s", "1e999d"],
)  # fmt: skip
def test_no_durations(text: str) -> None:
    with pytest.raises(ValueError, match=r"duration|time unit"):
        parse_duration(text)


@given(st.text(max_size=20))
def test_any_text_is_a_duration_or_a_value_error(text: str) -> None:
    try:
        assert abs(parse_duration(text)) < 1e10
    except ValueError as error:
        assert str(error).isprintable()  # noqa: PT017 - either outcome is right


# --- back-off --------------------------------------------------------------------------------------------------------


def test_tables() -> None:
    assert FIVE_SEC.milliseconds == (500, 750, 1000, 1500, 2000, 2500, 3000, 3500, 4000, 4500, 5000)
    assert len(TWENTY_SEC.milliseconds) == 44
    assert sum(TWENTY_SEC.milliseconds) == 443_000
    assert [TWENTY_SEC.milliseconds[place] for place in (0, 1, 11, 12, 13, 23, 34, 43)] == [
        500, 750, 5500, 5750, 6000, 10750, 15750, 20000,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("tries", "luck", "seconds"),
    [
        (0, 0.0, 0.25),
        (1, 0.0, 0.375),
        (1, 0.9999, 1.124),
        (2, 0.5, 1.0),
        (10, 0.5, 5.0),
        (99, 0.5, 5.0),
        (99, 0.0, 2.5),
    ],
)
def test_pauses(tries: int, luck: float, seconds: float) -> None:
    assert FIVE_SEC.pause(tries, luck) == seconds


# --- host lists ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("broker.example.net:4222", "nats://broker.example.net:4222"),
        (" broker:4222 ", "nats://broker:4222"),
        ("tls://broker:4222", "tls://broker:4222"),
        ("broker:1", "nats://broker:1"),
        ("broker:65535", "nats://broker:65535"),
        ("nats://user:s3cret@broker:4222/path", "nats://broker:4222"),
        ("[::1]:4222", "nats://[::1]:4222"),
    ],
)
def test_hosts(text: str, url: str) -> None:
    assert broker_url(text) == url


@pytest.mark.parametrize(
    "text",
    [
        "",
        "broker",
        "nats://broker",
        ":4222",
        "broker:x",
        "broker:99999",
        "broker:0",
        "[::1",
        "a b:1",
        "+://a:1",
        "a\n:1",
        "u:s3cret@b",
    ],
)
def test_no_hosts(text: str) -> None:
    with pytest.raises(ValueError, match="a host and a port are wanted") as caught:
        broker_url(text)
    assert "s3cret" not in str(caught.value)
