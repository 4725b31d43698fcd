"""The site's helper as a real process: whatever it does, an answer or one clear error, and nothing is left."""

import json
import logging
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from provisioner.command import check_command
from provisioner.errors import (
    HelperBadReply,
    HelperError,
    HelperFailed,
    HelperNotStarted,
    HelperSilent,
    HelperTooMuch,
    HelperTooSlow,
)
from provisioner.helper.child import MAX_STDOUT, STDERR_LINE, STDERR_LINES, STDERR_TAIL, Group, Tail, read_rest
from provisioner.helper.contract import HelperReply, decode_reply
from provisioner.helper.process import run_helper
from tests.process.conftest import Script
from tests.process.processes import children, descriptors, gone, members, zombies

ANSWER = """echo '{"configuration":{"a":"b"}}'\n"""
REPLY = HelperReply(configuration={"a": "b"})

LONG = 60.0
"""A limit that no test here comes near: the result must not depend on it."""


# --- the good way --------------------------------------------------------------------------------------------------


async def test_an_answer(script: Script) -> None:
    run = await run_helper(script("cat"), b'{"configuration":{"a":"b"}}', limit=LONG)
    assert decode_reply(run.stdout) == REPLY
    assert 0 < run.seconds < LONG
    assert run.stderr == ""


async def test_arguments_arrive_as_they_are_and_no_shell_looks_at_them(script: Script) -> None:
    argv = script('printf "%s\\n" "$@"', "a b", ";|&$X`id`>x", "")
    assert (await run_helper(argv, b"", limit=LONG)).stdout == b"a b\n;|&$X`id`>x\n\n"


async def test_nothing_secret_in_argv_or_environment(script: Script) -> None:
    argv = script("tr '\\0' '\\n' < /proc/$$/cmdline; tr '\\0' '\\n' < /proc/$$/environ")
    run = await run_helper(argv, b'{"jwt":{"cht":"s3cret"}}', identity="n1.example.net", limit=LONG)
    shown = run.stdout.decode()
    assert argv[0] in shown
    assert "s3cret" not in shown
    assert "n1.example.net" not in shown


async def test_it_inherits_environment_and_working_directory(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SITE_DB", "x=y")
    monkeypatch.chdir(tmp_path)
    run = await run_helper(script('pwd -P; echo "$SITE_DB"'), b"", limit=LONG)
    assert run.stdout.decode() == f"{os.path.realpath(tmp_path)}\nx=y\n"


async def test_it_leads_a_session_of_its_own(script: Script) -> None:
    run = await run_helper(script("echo $$; cut -d' ' -f5,6 /proc/$$/stat"), b"", limit=LONG)
    pid, group, session = run.stdout.split()
    assert pid == group == session


async def test_an_answer_of_exactly_the_limit_is_taken(script: Script) -> None:
    run = await run_helper(script(f"head -c {MAX_STDOUT} /dev/zero"), b"", limit=LONG)
    assert run.stdout == bytes(MAX_STDOUT)


async def test_many_at_once(script: Script) -> None:
    argv = script("cat")
    answers: dict[int, bytes] = {}

    async def one(n: int) -> None:
        answers[n] = (await run_helper(argv, b"%d" % n, limit=LONG)).stdout

    async with trio.open_nursery() as nursery:
        for n in range(100):
            nursery.start_soon(one, n)
    assert answers == {n: b"%d" % n for n in range(100)}


# --- standard input (case 53) --------------------------------------------------------------------------------------

MEGABYTE = b"x" * (1 << 20)


@pytest.mark.parametrize("body", ["exec <&-\n", "", "head -c 10 >/dev/null\n"], ids=["closed", "ignored", "10 bytes"])
async def test_a_helper_need_not_read_its_input(script: Script, body: str) -> None:
    run = await run_helper(script(body + ANSWER), MEGABYTE, limit=LONG)
    assert decode_reply(run.stdout) == REPLY


async def test_a_helper_that_reads_to_the_end_sees_the_end(script: Script) -> None:
    assert (await run_helper(script("wc -c"), MEGABYTE, limit=LONG)).stdout.strip() == b"1048576"


async def test_input_and_answer_flow_at_once(script: Script) -> None:
    payload = MEGABYTE[:-1] + b"\n"
    assert (await run_helper(script("cat"), payload, limit=LONG)).stdout == payload


# --- when it counts, and who dies (cases 41, 42, 43) ----------------------------------------------------------------


async def test_the_answer_counts_when_the_helper_has_exited(script: Script, tmp_path: Path) -> None:
    argv = script(f"echo $$ > {tmp_path}/pid; sleep 1000 &\n" + ANSWER)
    with trio.fail_after(30):
        run = await run_helper(argv, b"", limit=LONG)
    assert decode_reply(run.stdout) == REPLY
    await gone(members(int((tmp_path / "pid").read_text())))


async def test_a_failure_is_known_when_the_helper_has_exited(script: Script, tmp_path: Path) -> None:
    with trio.fail_after(30), pytest.raises(HelperFailed, match=r"exited with code 1$"):
        await run_helper(script(f"echo $$ > {tmp_path}/pid; sleep 1000 & exit 1"), b"", limit=LONG)
    await gone(members(int((tmp_path / "pid").read_text())))


async def test_all_that_it_wrote_before_it_exited_is_read(script: Script) -> None:
    # 60 KB fit into the pipe: they are there when the helper is gone, and the stranger never closes it.
    run = await run_helper(script("sleep 1000 & head -c 60000 /dev/zero"), b"", limit=LONG)
    assert len(run.stdout) == 60000


async def test_a_helper_deaf_to_term_is_killed_at_its_limit(script: Script) -> None:
    argv = script("trap '' TERM; while :; do sleep 1000; done")
    with trio.fail_after(4), pytest.raises(HelperTooSlow, match=r"had not finished after 0.5 s and was killed"):
        await run_helper(argv, b"", limit=0.5)


async def test_three_generations_deaf_to_term_die_together(script: Script, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ready")
    argv = script(
        f"""trap '' TERM HUP INT; echo $$ > {tmp_path}/pid
        (trap '' TERM; (trap '' TERM; echo ready > {tmp_path}/ready; sleep 1000) & sleep 1000) &
        sleep 1000
        """
    )
    ready = await trio.to_thread.run_sync(os.open, tmp_path / "ready", os.O_RDWR | os.O_NONBLOCK)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_helper, argv, b"")
            with trio.fail_after(30):
                await trio.lowlevel.wait_readable(ready)
            session = int((tmp_path / "pid").read_text())
            family = members(session)
            assert len(family) >= 3
            nursery.cancel_scope.cancel()
        await gone(family)
        assert members(session) == []
    finally:
        os.close(ready)


async def test_one_who_left_the_group_does_not_hold_the_worker(script: Script, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ready")
    argv = script(
        f"setsid sh -c 'echo $$ > {tmp_path}/pid; echo ready > {tmp_path}/ready; exec sleep 1000' &\n"
        f"read ready < {tmp_path}/ready\n" + ANSWER
    )
    with trio.fail_after(30):
        run = await run_helper(argv, b"", limit=LONG)
    assert decode_reply(run.stdout) == REPLY
    escaped = int((tmp_path / "pid").read_text())
    os.kill(escaped, signal.SIGKILL)  # documented: only a cgroup reaches it
    await gone([escaped])


async def test_one_who_left_the_group_and_floods_does_not_hold_the_worker(script: Script) -> None:
    with trio.fail_after(30):
        run = await run_helper(script("setsid yes >&2 &\n" + ANSWER), b"", limit=LONG)
    assert decode_reply(run.stdout) == REPLY


async def test_what_is_read_after_the_exit_is_bounded() -> None:
    stream = trio.lowlevel.FdStream(os.open("/dev/zero", os.O_RDONLY))
    tail = Tail()
    read_rest(stream, tail)
    assert len(tail.data) == STDERR_TAIL
    stream.close()


@pytest.mark.slow
async def test_the_limit_is_ten_seconds(script: Script) -> None:
    begin = trio.current_time()
    with trio.fail_after(30), pytest.raises(HelperTooSlow, match="after 10 s"):
        await run_helper(script("trap '' TERM; sleep 1000 & sleep 1000"), b"")
    assert trio.current_time() - begin >= 10


@pytest.mark.parametrize("pid", [0, 1, -1, os.getpgrp()])
async def test_a_group_is_never_ours_or_everybodys(pid: int) -> None:
    with pytest.raises(ValueError, match="refusing"):
        Group(pid)


def no_pidfd(group: Group) -> None:
    group.close()
    group._fd = None


@pytest.mark.parametrize("prepare", [lambda group: None, no_pidfd], ids=["pidfd", "number"])
async def test_a_group_is_killed_after_its_leader_was_reaped(prepare: Callable[[Group], None]) -> None:
    leader = subprocess.Popen(["/bin/sh", "-c", "sleep 1000 & echo $!"], stdout=subprocess.PIPE, start_new_session=True)
    group = Group(leader.pid)
    prepare(group)
    assert leader.stdout is not None
    sleeper = int(leader.stdout.readline())
    leader.stdout.close()
    leader.wait()
    assert members(leader.pid) == [sleeper]
    group.kill()
    await gone([sleeper])
    group.kill()  # nobody is left: nothing happens
    group.close()


async def test_a_reused_number_is_not_killed() -> None:
    last = Path("/proc/sys/kernel/ns_last_pid")
    if not os.access(last, os.W_OK):
        pytest.skip("this kernel doesn't let us choose a process id")
    for _ in range(50):
        first = subprocess.Popen(["/bin/true"], start_new_session=True)
        group = Group(first.pid)
        first.wait()
        last.write_text(str(first.pid - 1))
        stranger = subprocess.Popen(["/bin/sleep", "1000"], start_new_session=True)
        try:
            if stranger.pid == first.pid:
                group.kill()
                assert stranger.poll() is None
                return
        finally:
            group.close()
            stranger.kill()
            stranger.wait()
    pytest.skip("somebody else always took the number")


# --- too much (case 44) ----------------------------------------------------------------------------------------------


def peak_memory() -> int:
    """The most memory that this process had since ``reset_peak``, kB."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


async def test_two_gigabytes_of_answer(script: Script) -> None:
    reset_peak()
    before = peak_memory()
    with trio.fail_after(50), pytest.raises(HelperTooMuch, match="wrote more than 1048576 bytes"):
        await run_helper(script("yes | head -c 2147483648"), b"", limit=LONG)
    assert peak_memory() - before < 50_000


async def test_an_answer_and_then_two_megabytes_of_blanks(script: Script) -> None:
    with pytest.raises(HelperTooMuch):
        await run_helper(script(ANSWER + "head -c 2097152 /dev/zero | tr '\\0' ' '"), b"", limit=LONG)


async def test_one_byte_over_the_limit(script: Script) -> None:
    with pytest.raises(HelperTooMuch):
        await run_helper(script(f"head -c {MAX_STDOUT + 1} /dev/zero"), b"", limit=LONG)


@pytest.mark.parametrize(
    "size", [20 << 20, pytest.param(1 << 30, marks=[pytest.mark.slow, pytest.mark.timeout(300)])], ids=["20M", "1G"]
)
async def test_a_flood_on_stderr_spoils_nothing(script: Script, size: int) -> None:
    reset_peak()
    before = peak_memory()
    run = await run_helper(script(f"yes | head -c {size} >&2; echo the end >&2\n" + ANSWER), b"", limit=200)
    assert decode_reply(run.stdout) == REPLY
    assert run.stderr.splitlines() == ["y"] * (STDERR_LINES - 1) + ["the end"]
    assert peak_memory() - before < 50_000


# --- stderr and the log (cases 45, 49, 57) ---------------------------------------------------------------------------


async def test_stderr_of_a_failure_is_logged_with_the_servers_name(
    script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(HelperFailed) as caught:
        await run_helper(script("echo first >&2; echo why >&2; exit 3"), b"", identity="n1.example.net", limit=LONG)
    assert str(caught.value).endswith("helper exited with code 3; last on stderr: why")
    assert caught.value.stderr == "first\nwhy"
    assert [(r.levelname, r.getMessage(), r.__dict__["identity"]) for r in caplog.records] == [
        ("WARNING", "Helper for n1.example.net: first", "n1.example.net"),
        ("WARNING", "Helper for n1.example.net: why", "n1.example.net"),
    ]


async def test_stderr_of_a_success_is_logged_too(script: Script, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    await run_helper(script("echo note >&2\n" + ANSWER), b"", identity="n1", limit=LONG)
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [("INFO", "Helper for n1: note")]


async def test_stderr_can_not_write_on_the_terminal(script: Script) -> None:
    run = await run_helper(script("printf '\\377\\033[31m\\tx\\r\\nlast' >&2\n" + ANSWER), b"", limit=LONG)
    assert run.stderr == "\ufffd\\x1b[31m\\tx\nlast"


async def test_what_is_logged_of_stderr_is_bounded(script: Script, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    await run_helper(script("head -c 5000 /dev/zero >&2; yes '' | head -n 500 >&2; seq 100 >&2\n" + ANSWER), b"")
    assert [r.getMessage().rpartition(" ")[2] for r in caplog.records] == [str(n) for n in range(81, 101)]
    caplog.clear()
    run = await run_helper(script("head -c 5000 /dev/zero >&2\n" + ANSWER), b"", limit=LONG)
    assert len(run.stderr) == STDERR_LINE + 1


async def test_stderr_of_one_who_was_too_slow_is_kept(script: Script) -> None:
    with pytest.raises(HelperTooSlow, match=r"last on stderr: asking the CA$"):
        await run_helper(script("echo asking the CA >&2; sleep 1000"), b"", limit=2)


async def test_no_secret_is_logged(script: Script, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    run = await run_helper(script("""printf '{"key":"PRIVATE KEY"'"""), b'{"jwt":{"cht":"s3cret"}}', limit=LONG)
    with pytest.raises(HelperBadReply) as caught:
        decode_reply(run.stdout)
    with pytest.raises(HelperFailed) as failed:
        await run_helper(script("echo PRIVATE KEY; exit 1"), b'{"jwt":{"cht":"s3cret"}}', limit=LONG)
    shown = f"{caplog.text}{run!r}{caught.value!r}{failed.value!r}{failed.value.stderr}"
    assert "PRIVATE" not in shown
    assert "s3cret" not in shown


async def test_an_answer_that_is_not_utf8(script: Script) -> None:
    run = await run_helper(script("""printf '{"msg":"\\377"}'"""), b"", limit=LONG)
    with pytest.raises(HelperBadReply, match="not UTF-8 at byte 8"):
        decode_reply(run.stdout)


IN_LOCALE_C = """
import sys, trio
from provisioner.errors import HelperBadReply
from provisioner.helper.contract import decode_reply, encode_input
from provisioner.helper.process import run_helper
told = encode_input(identity="n\\u00f6de", csr=None, ed25519_pubkey=None, inventory="{}", jwt=None)
async def main():
    run = await run_helper(["/bin/cat"], told)
    sys.stdout.buffer.write(run.stdout + b"\\n")
    run = await run_helper(["/usr/bin/printf", '{"msg":"\\\\377"}'], b"")
    try:
        decode_reply(run.stdout)
    except HelperBadReply as error:
        print(error)
trio.run(main)
"""


async def test_the_locale_changes_nothing() -> None:
    env = {**os.environ, "LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run([sys.executable, "-c", IN_LOCALE_C], env=env, capture_output=True, check=True)
    first, second = done.stdout.splitlines()
    assert first == '{"identity":"nöde","csr":null,"ed25519_pubkey":null,"inventory":"{}","jwt":null}'.encode()
    assert b"not UTF-8 at byte 8" in second


# --- the exit code decides (case 47) ---------------------------------------------------------------------------------


async def test_a_good_answer_with_a_bad_exit_code_is_refused(script: Script) -> None:
    with pytest.raises(HelperFailed, match=r"helper exited with code 1$"):
        await run_helper(script(ANSWER + "exit 1"), b"", limit=LONG)


async def test_a_good_answer_from_one_that_was_killed_is_refused(script: Script) -> None:
    with pytest.raises(HelperFailed, match=r"helper was ended by signal 11 \(SIGSEGV\)$"):
        await run_helper(script(ANSWER + "kill -SEGV $$"), b"", limit=LONG)


async def test_silence_is_no_answer(script: Script) -> None:
    with pytest.raises(HelperSilent, match=r"helper exited with code 0 and zero bytes received$"):
        await run_helper(script(""), b"", limit=LONG)


async def test_a_silent_failure_is_a_failure(script: Script) -> None:
    with pytest.raises(HelperFailed, match="exited with code 7"):
        await run_helper(script("exit 7"), b"", limit=LONG)


# --- the start (cases 54, 59) ----------------------------------------------------------------------------------------


def missing(path: Path) -> None:
    pass


def directory(path: Path) -> None:
    path.mkdir()


def fifo(path: Path) -> None:
    os.mkfifo(path, 0o755)


def file(text: str, mode: int = 0o755) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.write_text(text)
        path.chmod(mode)

    return make


BROKEN = [
    pytest.param(missing, "can't be looked at: No such file or directory", id="missing"),
    pytest.param(directory, "is a directory", id="directory"),
    pytest.param(fifo, "is not a regular file", id="fifo"),
    pytest.param(file("#!/bin/sh\n", 0o644), "is not executable for this user; try chmod +x", id="mode 0644"),
    pytest.param(file(""), "is empty", id="empty"),
    pytest.param(
        file("#!/no/ruby\n"), "in its first line the interpreter '/no/ruby', which can't be run", id="no ruby"
    ),
    pytest.param(file("#!/bin/sh\r\n"), "the interpreter '/bin/sh\\r', which can't be run", id="carriage return"),
    pytest.param(file("#!\n"), "the interpreter '', which can't be run", id="no interpreter"),
]


@pytest.mark.parametrize(("make", "said"), BROKEN)
async def test_what_can_not_be_started(tmp_path: Path, make: Callable[[Path], None], said: str) -> None:
    path = tmp_path / "helper"
    make(path)
    problem = check_command([str(path)])
    assert problem is not None
    assert said in problem
    assert str(path) in problem
    with pytest.raises(HelperNotStarted) as caught:
        await run_helper([str(path)], b"", limit=LONG)
    assert str(caught.value) == f"{path} could not be started: {problem}"


async def test_a_script_without_a_first_line(tmp_path: Path) -> None:
    file("echo {}\n")(tmp_path / "helper")
    with pytest.raises(HelperNotStarted, match=r"Exec format error; a script needs a first line such as #!/bin/sh$"):
        await run_helper([str(tmp_path / "helper")], b"", limit=LONG)


async def test_a_relative_path_is_refused_at_start_up(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(ANSWER)
    monkeypatch.chdir(tmp_path)
    assert "is a relative path" in str(check_command(["./helper"]))


async def test_a_program_is_found_in_path() -> None:
    assert check_command(["sh", "-c", ":"]) is None
    assert "no program 'no-such-program' in PATH" in str(check_command(["no-such-program"]))


async def test_a_good_command_has_no_problem(script: Script) -> None:
    assert check_command(script(ANSWER)) is None
    assert check_command([sys.executable]) is None
    assert check_command(script(ANSWER, first="#! \t/bin/sh -e\n")) is None


async def test_an_interpreter_that_is_a_fifo(script: Script, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "interpreter", 0o755)
    argv = script(ANSWER, first=f"#!{tmp_path}/interpreter\n")
    with trio.fail_after(30), pytest.raises(HelperNotStarted):
        await run_helper(argv, b"", limit=1)


async def test_one_that_hangs_before_its_own_first_line(script: Script, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "profile")
    with trio.fail_after(30), pytest.raises(HelperTooSlow):
        await run_helper(script(f". {tmp_path}/profile\n" + ANSWER), b"", limit=0.5)


async def test_waiting_for_a_thread_to_start_in_counts(script: Script) -> None:
    limiter = trio.to_thread.current_default_thread_limiter()
    busy = [object() for _ in range(int(limiter.available_tokens))]
    for borrower in busy:
        limiter.acquire_on_behalf_of_nowait(borrower)
    try:
        with pytest.raises(HelperTooSlow):
            await run_helper(script(ANSWER), b"", limit=0.1)
    finally:
        for borrower in busy:
            limiter.release_on_behalf_of(borrower)


async def test_too_few_descriptors(script: Script) -> None:
    argv = script("cat")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(path.name) for path in Path("/proc/self/fd").iterdir()) + 1
    free = highest - descriptors()
    spare = [os.open("/dev/null", os.O_RDONLY) for _ in range(free)]
    seen = set()
    try:
        for n in range(20):
            resource.setrlimit(resource.RLIMIT_NOFILE, (highest + n, hard))
            try:
                run = await run_helper(argv, b'{"configuration":{"a":"b"}}', limit=LONG)
            except HelperNotStarted as error:
                seen.add("refused")
                assert "Too many open files" in str(error)  # noqa: PT017
            else:
                seen.add("answered")
                assert decode_reply(run.stdout) == REPLY
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in spare:
            os.close(fd)
    assert seen == {"refused", "answered"}


async def test_an_ignored_sigchld_is_told(script: Script) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with pytest.raises(HelperNotStarted, match="SIGCHLD is ignored in this process"):
            await run_helper(script(ANSWER), b"", limit=LONG)
    finally:
        signal.signal(signal.SIGCHLD, before)


# --- nothing is left (case 46) ---------------------------------------------------------------------------------------

PATHS = {
    "good": (ANSWER, LONG, None),
    "silent": ("", LONG, HelperSilent),
    "code": (ANSWER + "exit 1", LONG, HelperFailed),
    "signal": ("kill -9 $$", LONG, HelperFailed),
    "slow": ("sleep 1000", 0.02, HelperTooSlow),
    "slow family": ("trap '' TERM; sleep 1000 & sleep 1000", 0.02, HelperTooSlow),
    "flood": ("exec cat /dev/zero", LONG, HelperTooMuch),
    "stranger": ("sleep 1000 &\n" + ANSWER, LONG, None),
    "deaf input": ("exec <&-\n" + ANSWER, LONG, None),
}


async def fifty_times(one: Callable[[], Awaitable[None]]) -> None:
    before = descriptors(), children()
    for _ in range(50):
        await one()
        assert zombies() == []
    assert (descriptors(), children()) == before


@pytest.mark.parametrize("name", PATHS)
async def test_fifty_times_and_nothing_is_left(script: Script, name: str) -> None:
    body, limit, error = PATHS[name]
    argv = script(body)

    async def one() -> None:
        try:
            run = await run_helper(argv, b"x" * 100_000, limit=limit)
        except HelperError as caught:
            assert type(caught) is error  # noqa: PT017
        else:
            assert error is None
            assert decode_reply(run.stdout) == REPLY

    await fifty_times(one)


async def test_fifty_that_can_not_be_started(tmp_path: Path) -> None:
    async def one() -> None:
        with pytest.raises(HelperNotStarted):
            await run_helper([str(tmp_path / "none")], b"", limit=LONG)

    await fifty_times(one)


async def test_cancelled_at_every_turn(script: Script) -> None:
    """The run is cut after each number of scheduler turns, from before its start until after its end."""
    argv = script("sleep 1000 & cat >/dev/null\n" + ANSWER)
    before = descriptors()
    for turns in range(80):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_helper, argv, b"x" * 100_000)
            for _ in range(turns):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        assert children() == []
        assert descriptors() == before


async def test_fifty_cancelled_in_the_middle(script: Script, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ready")
    argv = script(f"echo $$ > {tmp_path}/ready; trap '' TERM; sleep 1000 & sleep 1000")
    ready = os.open(tmp_path / "ready", os.O_RDWR | os.O_NONBLOCK)

    async def one() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_helper, argv, b"")
            await trio.lowlevel.wait_readable(ready)
            session = int(os.read(ready, 100))
            nursery.cancel_scope.cancel()
        await gone(members(session))

    await fifty_times(one)
    os.close(ready)


async def test_two_hundred_that_say_nothing_leave_no_zombie() -> None:
    for _ in range(200):
        with pytest.raises(HelperSilent):
            await run_helper(["/bin/true"], json.dumps({}).encode(), limit=LONG)
    assert zombies() == []
