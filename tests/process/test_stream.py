"""``helper_mode: stream``: the whole list of helper faults, against helpers that run on."""

import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from provisioner.errors import (
    HelperBadReply,
    HelperError,
    HelperFailed,
    HelperNotStarted,
    HelperSilent,
    HelperTooMuch,
    HelperTooSlow,
)
from provisioner.helper.child import MAX_STDOUT, STDERR_LINES
from provisioner.helper.contract import HelperReply, decode_reply
from provisioner.helper.process import HelperRun
from provisioner.helper.stream import StreamHelpers
from tests.process.conftest import Script
from tests.process.processes import children, descriptors, gone, members, zombies
from tests.process.test_process import BROKEN, LONG, PATHS, peak_memory, reset_peak

GOOD = """echo '{"configuration":{"a":"b"}}'"""
REPLY = HelperReply(configuration={"a": "b"})
PID = """echo "{\\"msg\\":\\"$$\\"}" """


def loop(body: str) -> str:
    return f"while read -r line; do\n{body}\ndone\n"


def pid(run: HelperRun) -> int:
    return int(decode_reply(run.stdout).msg)


async def replaced(helpers: StreamHelpers, argv: list[str]) -> None:
    """The next question is answered well."""
    assert decode_reply((await helpers(argv, b'"good"', limit=LONG)).stdout) == REPLY


def bad_once(tmp_path: Path, body: str) -> str:
    """A helper that does ``body`` for its first question ever, and is good after that, in another process too."""
    return loop(f'if mkdir "{tmp_path}/bad" 2>/dev/null; then\n{body}\nelse\n{GOOD}\nfi')


# --- the good way ---------------------------------------------------------------------------------------------------


async def test_one_process_answers_many(script: Script) -> None:
    argv = script(loop(PID))
    async with StreamHelpers(1) as helpers:
        runs = [await helpers(argv, b"{}", limit=LONG) for _ in range(20)]
    assert len({pid(run) for run in runs}) == 1
    assert children() == []


async def test_each_question_is_one_line(script: Script) -> None:
    argv = script("exec cat")
    async with StreamHelpers(1) as helpers:
        for n in range(3):
            assert (await helpers(argv, b'{"n":%d}' % n, limit=LONG)).stdout == b'{"n":%d}' % n
        with pytest.raises(ValueError, match="one line"):
            await helpers(argv, b"{\n}", limit=LONG)


async def test_side_by_side(script: Script) -> None:
    argv = script(loop(PID.replace("echo", "sleep 0.01; echo")))
    seen: set[int] = set()

    async def ask(helpers: StreamHelpers) -> None:
        seen.add(pid(await helpers(argv, b"{}", limit=LONG)))

    async with StreamHelpers(3) as helpers:
        async with trio.open_nursery() as nursery:
            for _ in range(30):
                nursery.start_soon(ask, helpers)
        assert len(children()) == len(seen) <= 3


async def test_waiting_for_a_free_helper_is_not_its_fault(script: Script, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    go = os.open(tmp_path / "go", os.O_RDWR)
    argv = script(loop(f"read go < {tmp_path}/go; {GOOD}"))
    done: list[HelperRun] = []

    async def ask(helpers: StreamHelpers, limit: float) -> None:
        done.append(await helpers(argv, b"{}", limit=limit))

    async with StreamHelpers(1) as helpers, trio.open_nursery() as nursery:
        nursery.start_soon(ask, helpers, LONG)
        await trio.testing.wait_all_tasks_blocked(0.2)
        nursery.start_soon(ask, helpers, 20)
        await trio.testing.wait_all_tasks_blocked(0.2)
        assert len(children()) == 1
        os.write(go, b"go\ngo\n")
    os.close(go)
    assert len(done) == 2


async def test_a_large_question_and_a_large_answer(script: Script) -> None:
    payload = json.dumps({"x": "y" * (MAX_STDOUT - 10)}).encode()
    async with StreamHelpers(1) as helpers:
        argv = script("exec cat")
        for _ in range(2):
            assert (await helpers(argv, payload, limit=LONG)).stdout == payload


async def test_a_python_helper(script: Script) -> None:
    body = """
import json, sys
for line in sys.stdin:
    server = json.loads(line)
    print(json.dumps({"identity": server["identity"], "configuration": {"x": server["identity"]}}), flush=True)
"""
    argv = script(body, first=f"#!{sys.executable}\n")
    async with StreamHelpers(2) as helpers:
        for name in ("a", "b"):
            run = await helpers(argv, json.dumps({"identity": name}).encode(), identity=name, limit=LONG)
            assert decode_reply(run.stdout) == HelperReply(configuration={"x": name})


async def test_a_crlf_is_a_line_end(script: Script) -> None:
    argv = script(loop("""printf '{"configuration":{"a":"b"}}\\r\\n'"""))
    async with StreamHelpers(1) as helpers:
        assert decode_reply((await helpers(argv, b"{}", limit=LONG)).stdout) == REPLY


async def test_one_that_ends_after_each_answer_is_replaced(script: Script) -> None:
    argv = script("read -r line; " + PID)
    async with StreamHelpers(1) as helpers:
        seen = {pid(await helpers(argv, b"{}", limit=LONG)) for _ in range(100)}
    assert len(seen) == 100


async def test_one_that_ends_at_a_question_is_asked_once_more_in_a_new_process(script: Script, tmp_path: Path) -> None:
    argv = script(f"echo $$ >> {tmp_path}/pids; read -r line; {GOOD}; read -r line; exit 0")
    async with StreamHelpers(1) as helpers:
        for _ in range(3):
            await replaced(helpers, argv)
    assert len((tmp_path / "pids").read_text().split()) == 3


async def test_one_that_always_ends_at_a_question_is_silent(script: Script, tmp_path: Path) -> None:
    argv = script(f"echo $$ >> {tmp_path}/pids; mkdir {tmp_path}/good && read -r line && {GOOD}; read -r line; exit 0")
    async with StreamHelpers(1) as helpers:
        await replaced(helpers, argv)
        with pytest.raises(HelperSilent):
            await helpers(argv, b"{}", limit=LONG)
    assert len((tmp_path / "pids").read_text().split()) == 2


# --- each breach: one clear error, killed, replaced -----------------------------------------------------------------

BREACHES = {
    "too slow": ("trap '' TERM; sleep 1000 & sleep 1000", 0.5, HelperTooSlow, "had not answered after 0.5 s and was"),
    "no line end": ("printf '{'; sleep 1000", 0.5, HelperTooSlow, "had not answered after 0.5 s"),
    "flood": ("exec cat /dev/zero", LONG, HelperTooMuch, "wrote more than 1048576 bytes"),
    "flood of lines": ("yes '{}'", LONG, HelperBadReply, "answered with more than one line"),
    "too long a line": (
        f"head -c {MAX_STDOUT + 1} /dev/zero; echo", LONG, HelperTooMuch, "wrote more than 1048576 bytes"
    ),
    "two lines": ("printf '{}\\n{}\\n'", LONG, HelperBadReply, "answered with more than one line"),
    "code": ("echo why >&2; exit 3", LONG, HelperFailed, "exited with code 3 before it had answered; last .*: why"),
    "signal": ("kill -SEGV $$", LONG, HelperFailed, r"was ended by signal 11 \(SIGSEGV\) before it had answered"),
    "exit 0": ("exit 0", LONG, HelperSilent, "zero bytes received"),
    "half an answer": ("printf '{\"defer\"'; exit 0", LONG, HelperBadReply, "in the middle of a line"),
    "half an answer, code": ("printf '{\"defer\"'; exit 4", LONG, HelperFailed, "exited with code 4"),
    "empty line": ("echo ' '", LONG, HelperSilent, "an empty line: zero bytes received"),
    "closed output": ("exec >&-; sleep 1000", LONG, HelperSilent, "zero bytes received"),
    "not JSON": ("echo oops", LONG, HelperBadReply, r"not JSON and was killed: Expecting value at .* \(4 bytes, S"),
    "not an object": ("echo []", LONG, HelperBadReply, "not a JSON object"),
    "not UTF-8": ("printf '{\"msg\":\"\\377\"}\\n'", LONG, HelperBadReply, "not UTF-8 at byte 8"),
    "NaN": ("echo '{\"defer\":NaN}'", LONG, HelperBadReply, "NaN is not JSON"),
    "nested": ("yes [ | head -n 100000 | tr -d '\\n'; echo", LONG, HelperBadReply, "nested too deep"),
    "other server": ("echo '{\"identity\":\"n2\"}'", LONG, HelperBadReply, "answered for another server"),
}  # fmt: skip


@pytest.mark.parametrize("name", BREACHES)
async def test_breach(script: Script, tmp_path: Path, name: str) -> None:
    body, limit, kind, said = BREACHES[name]
    argv = script(f"echo $$ >> {tmp_path}/pids\n" + bad_once(tmp_path, body))
    async with StreamHelpers(1) as helpers:
        with trio.fail_after(30), pytest.raises(HelperError, match=said) as caught:
            await helpers(argv, b'"bad"', identity="n1", limit=limit)
        assert caught.type is kind
        assert children() == []
        await gone(members(int((tmp_path / "pids").read_text().split()[0])))
        await replaced(helpers, argv)
    assert len((tmp_path / "pids").read_text().split()) == 2


@pytest.mark.parametrize("times", [5, pytest.param(50, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", BREACHES)
async def test_many_breaches_and_nothing_is_left(script: Script, name: str, times: int) -> None:
    body, limit, kind, _ = BREACHES[name]
    argv = script(loop(body))
    before = descriptors()
    async with StreamHelpers(2) as helpers:
        for _ in range(times):
            with pytest.raises(kind):
                await helpers(argv, b'"bad"', identity="n1", limit=min(limit, 0.02) if limit < LONG else LONG)
            assert children() == []
        assert (descriptors(), zombies()) == (before, [])


async def test_an_answer_that_comes_before_the_question_was_read(script: Script) -> None:
    argv = script("head -c 10 >/dev/null; echo '{}'; exec sleep 1000")
    async with StreamHelpers(1) as helpers:
        with pytest.raises(HelperBadReply, match="answered before it had read the question"):
            await helpers(argv, b"x" * (1 << 20), limit=LONG)


async def test_one_that_closes_its_input(script: Script) -> None:
    argv = script("exec <&-\n" + GOOD)
    async with StreamHelpers(1) as helpers:
        for _ in range(20):
            with pytest.raises(HelperBadReply, match="answered before it had read the question"):
                await helpers(argv, b"x" * (1 << 20), limit=LONG)


@pytest.mark.parametrize("late", ['echo \'{"configuration":{"c":"d"}}\'', "exit 0", "kill -9 $$", "exec >&-"])
async def test_what_comes_after_the_answer_is_not_the_next_answer(script: Script, tmp_path: Path, late: str) -> None:
    os.mkfifo(tmp_path / "go")
    os.mkfifo(tmp_path / "done")
    argv = script(
        f"""read -r line; {GOOD}
        if mkdir {tmp_path}/first 2>/dev/null; then
            read go < {tmp_path}/go; {late}; echo done > {tmp_path}/done; sleep 1000
        fi
        """
    )
    ready = os.open(tmp_path / "done", os.O_RDWR | os.O_NONBLOCK)
    go = os.open(tmp_path / "go", os.O_RDWR)
    try:
        async with StreamHelpers(1) as helpers:
            await replaced(helpers, argv)
            (first,) = children()
            watch = os.pidfd_open(first)
            os.write(go, b"go\n")
            with trio.fail_after(30):
                await trio.lowlevel.wait_readable(watch if "exit" in late or "kill" in late else ready)
            os.close(watch)
            await trio.testing.wait_all_tasks_blocked(0.2)
            await replaced(helpers, argv)
            assert first not in children()
    finally:
        os.close(ready)
        os.close(go)


async def test_the_identity_in_the_answer_must_be_the_servers(script: Script) -> None:
    argv = script(loop("""echo '{"identity":"n1","defer":true}'"""))
    async with StreamHelpers(1) as helpers:
        await helpers(argv, b"{}", identity="n1", limit=LONG)
        with pytest.raises(HelperBadReply, match="another server"):
            await helpers(argv, b"{}", identity="n2", limit=LONG)


# --- who dies -------------------------------------------------------------------------------------------------------


async def test_a_stranger_in_the_group_dies_with_its_helper(script: Script, tmp_path: Path) -> None:
    argv = script(f"echo $$ > {tmp_path}/pid; sleep 1000 &\nread -r line; {GOOD}\n")
    async with StreamHelpers(1) as helpers:
        with trio.fail_after(30):
            await replaced(helpers, argv)
            # The stranger holds the pipes of a helper that has exited.
            await gone([int((tmp_path / "pid").read_text())])
            await gone(members(int((tmp_path / "pid").read_text())))
            await replaced(helpers, argv)


async def test_one_who_left_the_group_does_not_hold_the_worker(script: Script, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ready")
    argv = script(
        f"setsid sh -c 'echo $$ > {tmp_path}/pid; echo ready > {tmp_path}/ready; exec sleep 1000' &\n"
        f"read ready < {tmp_path}/ready\nexit 3\n"
    )
    async with StreamHelpers(1) as helpers:
        with trio.fail_after(30), pytest.raises(HelperFailed, match="exited with code 3"):
            await helpers(argv, b"{}", limit=LONG)
    escaped = int((tmp_path / "pid").read_text())
    os.kill(escaped, signal.SIGKILL)
    await gone([escaped])


async def test_one_that_failed_unasked_is_replaced_though_a_stranger_holds_its_output(
    script: Script, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "ready")
    argv = script(
        f"""if mkdir {tmp_path}/first 2>/dev/null; then
            setsid sh -c 'echo $$ > {tmp_path}/pid; echo ready > {tmp_path}/ready; exec sleep 1000' &
            read ready < {tmp_path}/ready; echo $$ > {tmp_path}/leader; read -r line; {GOOD}; exit 3
        fi
        {loop(GOOD)}"""
    )
    async with StreamHelpers(1) as helpers:
        await replaced(helpers, argv)
        await gone([int((tmp_path / "leader").read_text())])
        await trio.testing.wait_all_tasks_blocked(0.1)
        await replaced(helpers, argv)
    escaped = int((tmp_path / "pid").read_text())
    os.kill(escaped, signal.SIGKILL)
    await gone([escaped])


async def test_leaving_the_context_kills_all(script: Script, tmp_path: Path) -> None:
    argv = script(f"trap '' TERM; echo $$ >> {tmp_path}/pids; sleep 1000 &\n" + loop(GOOD))
    async with StreamHelpers(2) as helpers:
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(replaced, helpers, argv)
        sessions = list(map(int, (tmp_path / "pids").read_text().split()))
        family = [pid for session in sessions for pid in members(session)]
        assert len(family) >= 2 * len(sessions)
    assert children() == []
    await gone(family)


async def test_an_error_in_the_context_kills_all(script: Script) -> None:
    with pytest.RaisesGroup(KeyError):
        async with StreamHelpers(2) as helpers:
            await replaced(helpers, script(loop(GOOD)))
            raise KeyError
    assert children() == []


async def test_cancelled_in_the_middle(script: Script, tmp_path: Path) -> None:
    argv = script(loop(f'case "$line" in *slow*) sleep 1000;; *) {GOOD};; esac'))
    async with StreamHelpers(1) as helpers:
        for _ in range(20):
            await replaced(helpers, argv)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(helpers, argv, b'"slow"')
                await trio.testing.wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
            assert children() == []


async def test_cancelled_at_every_turn(script: Script) -> None:
    argv = script(loop(GOOD))
    before = descriptors()
    for turns in range(60):
        async with StreamHelpers(1) as helpers, trio.open_nursery() as nursery:
            nursery.start_soon(helpers, argv, b"x" * 100_000)
            for _ in range(turns):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        assert (children(), descriptors()) == ([], before)


async def test_the_pool_is_cancelled_as_a_whole(script: Script) -> None:
    argv = script(loop("trap '' TERM; sleep 1000"))
    before = descriptors()

    async def serve(task_status: trio.TaskStatus[None]) -> None:
        async with StreamHelpers(2) as helpers, trio.open_nursery() as nursery:
            nursery.start_soon(helpers, argv, b"{}")
            nursery.start_soon(helpers, argv, b"{}")
            task_status.started()

    async with trio.open_nursery() as nursery:
        await nursery.start(serve)
        await trio.testing.wait_all_tasks_blocked(0.1)
        nursery.cancel_scope.cancel()
    assert (children(), descriptors()) == ([], before)


# --- memory, stderr, the log ----------------------------------------------------------------------------------------


async def test_two_gigabytes_of_answer(script: Script) -> None:
    reset_peak()
    before = peak_memory()
    async with StreamHelpers(1) as helpers:
        with trio.fail_after(50), pytest.raises(HelperTooMuch):
            await helpers(script(loop("yes | tr -d '\\n' | head -c 2147483648")), b"{}", limit=LONG)
    assert peak_memory() - before < 50_000


async def test_a_flood_on_stderr_spoils_nothing(script: Script) -> None:
    argv = script(loop(f"yes | head -c 5000000 >&2; echo the end >&2; {GOOD}"))
    async with StreamHelpers(1) as helpers:
        for _ in range(2):
            run = await helpers(argv, b"{}", limit=LONG)
            assert decode_reply(run.stdout) == REPLY
            assert run.stderr.splitlines() == ["y"] * (STDERR_LINES - 1) + ["the end"]


async def test_stderr_is_logged_with_the_name_of_the_server_that_was_asked_about(
    script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    argv = script(loop(f'echo "$line" >&2; {GOOD}'))
    async with StreamHelpers(1) as helpers:
        for name in ("n1", "n2"):
            await helpers(argv, name.encode(), identity=name, limit=LONG)
    assert [r.getMessage() for r in caplog.records] == ["Helper for n1: n1", "Helper for n2: n2"]


async def test_the_last_words_of_one_that_ended_unasked_are_logged(
    script: Script, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    argv = script(f"echo $$ > {tmp_path}/pid; read -r line; {GOOD}; echo tired >&2; exit 5")
    async with StreamHelpers(1) as helpers:
        await replaced(helpers, argv)
        await gone([int((tmp_path / "pid").read_text())])
        await trio.testing.wait_all_tasks_blocked(0.1)
        await replaced(helpers, argv)
    assert "ended or said something unasked, and is replaced" in caplog.text
    assert "tired" in caplog.text


async def test_no_secret_is_logged(script: Script, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    argv = script(loop("""printf '{"key":"PRIVATE KEY"\\n'"""))
    async with StreamHelpers(1) as helpers:
        with pytest.raises(HelperBadReply) as caught:
            await helpers(argv, b'{"jwt":{"cht":"s3cret"}}', limit=LONG)
    shown = f"{caplog.text}{caught.value!r}{caught.value.stderr}"
    assert "PRIVATE" not in shown
    assert "s3cret" not in shown


async def test_nothing_secret_in_argv_or_environment(script: Script) -> None:
    argv = script("cat /proc/$$/cmdline /proc/$$/environ | tr '\\0' '\\n' >&2\n" + loop(GOOD))
    async with StreamHelpers(1) as helpers:
        run = await helpers(argv, b'{"jwt":{"cht":"s3cret"}}', identity="n1.example.net", limit=LONG)
    assert "s3cret" not in run.stderr
    assert "n1.example.net" not in run.stderr


# --- the start ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("make", "said"), BROKEN)
async def test_what_can_not_be_started(tmp_path: Path, make: Callable[[Path], None], said: str) -> None:
    path = tmp_path / "helper"
    make(path)
    async with StreamHelpers(1) as helpers:
        for _ in range(5):
            with pytest.raises(HelperNotStarted) as caught:
                await helpers([str(path)], b"{}", limit=LONG)
        assert said in str(caught.value)


async def test_one_that_hangs_before_its_own_first_line(script: Script, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "profile")
    async with StreamHelpers(1) as helpers:
        with trio.fail_after(30), pytest.raises(HelperTooSlow):
            await helpers(script(f". {tmp_path}/profile\n" + loop(GOOD)), b"{}", limit=0.5)


async def test_waiting_for_a_thread_to_start_in_counts(script: Script) -> None:
    limiter = trio.to_thread.current_default_thread_limiter()
    busy = [object() for _ in range(int(limiter.available_tokens))]
    for borrower in busy:
        limiter.acquire_on_behalf_of_nowait(borrower)
    try:
        async with StreamHelpers(1) as helpers:
            with pytest.raises(HelperTooSlow):
                await helpers(script(loop(GOOD)), b"{}", limit=0.1)
    finally:
        for borrower in busy:
            limiter.release_on_behalf_of(borrower)


async def test_after_the_context_nothing_is_started(script: Script) -> None:
    async with StreamHelpers(1) as helpers:
        pass
    with trio.fail_after(30), pytest.raises(RuntimeError):
        await helpers(script(loop(GOOD)), b"{}", limit=LONG)


@pytest.mark.parametrize("name", PATHS)
async def test_helpers_for_one_run_are_no_worse_here(script: Script, name: str) -> None:
    """A helper that was written for one run, used by mistake: it answers, or there is one clear error."""
    body, limit, _ = PATHS[name]
    argv = script(body)

    async def ask(helpers: StreamHelpers) -> None:
        try:
            run = await helpers(argv, b"{}", limit=limit)
        except HelperError:
            return
        assert decode_reply(run.stdout) == REPLY

    async with StreamHelpers(2) as helpers:
        for _ in range(10):
            await ask(helpers)
