"""``helper_mode: stream``: helpers that run on, one JSON line in and one JSON line out for each server.

For sites whose helper takes long to start. A helper is given one question at a time and has the same ten seconds for
its answer as a run of its own would have. After any breach it is killed with its group and another takes its place: who
has answered late, twice, in part or not at all can't be trusted to be at the same question as we are. For the same
reason a helper should put the ``identity`` into its answer: one that is there and isn't the server's is a breach, so
that a configuration can't go to the wrong server.
"""

import logging
import os
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import trio

from provisioner.errors import HelperBadReply, HelperError, HelperFailed, HelperSilent, HelperTooMuch, HelperTooSlow
from provisioner.helper.child import CHUNK, MAX_STDOUT, Answer, Child, Tail, read, read_rest
from provisioner.helper.contract import fingerprint
from provisioner.helper.process import LIMIT, HelperRun, complaint, how_it_ended, log_stderr, not_started
from provisioner.strictjson import NotJSON, loads

log = logging.getLogger(__name__)

_EXIT_GRACE = 0.5
"""Seconds for a helper that has closed its output to exit, so that its exit code can be told."""


Breach = tuple[type[HelperError], str]
"""What a helper did wrong: the error, and words that follow the program's name."""


class _Member:
    """One helper that runs on. It is asked by one task at a time."""

    def __init__(self, argv: Sequence[str]) -> None:
        self.argv = tuple(argv)
        self.child = Child()
        self.gone = trio.Event()
        self._begun = False
        self._tail = Tail()
        self._scope = trio.CancelScope()
        self._answer = Answer()
        self._sent = False

    async def live(self, *, task_status: trio.TaskStatus[None]) -> None:
        """From its start to its end; a task of the pool."""

        def begun() -> None:
            pipes.start_soon(read, self.child, self.child.stderr, self._tail)
            task_status.started()

        self._begun = True
        try:
            with self._scope:
                async with trio.open_nursery() as pipes:
                    await self.child.run(self.argv, begun)
                    if self.child.refused is not None:
                        task_status.started()
                    pipes.cancel_scope.cancel()
        finally:
            self.child.kill()
            self.gone.set()

    async def stop(self) -> None:
        """Kills it with its group, and returns when nothing of it is left."""
        self._scope.cancel()
        if self._begun:
            with trio.CancelScope(shield=True):
                await self.gone.wait()
        self.child.close()

    def fit(self) -> bool:
        """Whether it waits for a question: alive, and nothing said that wasn't asked."""
        if self.gone.is_set():
            return False
        try:
            os.read(self.child.stdout.fileno(), 1)
        except BlockingIOError:
            return True
        return False

    def stderr(self) -> list[str]:
        """What it has written on stderr since it was last asked."""
        read_rest(self.child.stderr, self._tail)
        return self._tail.take()

    async def ask(self, nursery: trio.Nursery, question: bytes) -> bool:
        """Sends one line and reads until there is one, or it is clear that there won't be.

        Returns:
            False when it had been asked before and has just ended in peace, without a word to this question: it left
            when it was done with the last one, and another may be asked.
        """
        fresh = not self._begun
        if fresh:
            await nursery.start(self.live)
        if self.child.process is None:
            return True
        await self._talk(question)
        return fresh or bool(self._answer.data) or not self.gone.is_set() or self.child.process.returncode != 0

    async def _talk(self, question: bytes) -> None:
        self._answer, self._sent = Answer(), False
        async with trio.open_nursery() as talk:
            talk.start_soon(self._send, question)
            talk.start_soon(self._watch, talk.cancel_scope)
            await self._read_line()
            talk.cancel_scope.cancel()
        if self.gone.is_set():
            read_rest(self.child.stdout, self._answer)

    async def _send(self, question: bytes) -> None:
        try:
            await self.child.stdin.send_all(question)
            self._sent = True
        except trio.BrokenResourceError:
            pass  # what it answered, or how it ended, says more

    async def _watch(self, scope: trio.CancelScope) -> None:
        await self.gone.wait()
        scope.cancel()

    async def _read_line(self) -> None:
        answer = self._answer
        while chunk := await self.child.stdout.receive_some(CHUNK):
            answer.add(chunk)
            if answer.too_much or b"\n" in chunk:
                return
        with trio.move_on_after(_EXIT_GRACE):
            await self.gone.wait()

    def line(self) -> bytes:
        """The answer, without its line end."""
        return bytes(self._answer.data.rstrip(b"\r\n"))

    def breach(self, identity: str) -> Breach | None:
        """What is wrong with what it did after ``ask``, or None."""
        before, end, after = self._answer.data.partition(b"\n")
        if len(before) > MAX_STDOUT:
            return HelperTooMuch, f"wrote more than {MAX_STDOUT} bytes and was killed"
        if not end:
            return self._no_line()
        if not before.strip():
            return HelperSilent, "answered with an empty line: zero bytes received"
        if after:
            return HelperBadReply, "answered with more than one line and was killed"
        if not self._sent:
            return HelperBadReply, "answered before it had read the question and was killed"
        return _wrong_line(bytes(before), identity)

    def _no_line(self) -> Breach:
        code = self.child.process.returncode if self.gone.is_set() and self.child.process else None
        if code:
            return HelperFailed, how_it_ended(code) + " before it had answered"
        if not self._answer.data:
            return HelperSilent, "ended its output without an answer: zero bytes received"
        return HelperBadReply, "ended its output in the middle of a line"


def _wrong_line(line: bytes, identity: str) -> Breach | None:
    try:
        answer = loads(line)
    except NotJSON as error:
        return HelperBadReply, f"wrote a line that is not JSON and was killed: {error} ({fingerprint(line)})"
    if not isinstance(answer, dict):
        return HelperBadReply, "wrote a line that is not a JSON object and was killed"
    if identity and answer.get("identity", identity) != identity:
        return HelperBadReply, "answered for another server and was killed"
    return None


class StreamHelpers:
    """A pool of helpers that run on. Give the object to ``serve`` as ``run_helper``; it is called as that is.

    Helpers are started as they are needed, up to ``processes``. Leaving the context kills them all.

    Args:
        processes: how many may run side by side; further calls wait for one to be free. The wait isn't part of the
            limit, and is bounded by it: each call before ours has its own.
    """

    def __init__(self, processes: int) -> None:
        self._places = trio.CapacityLimiter(processes)
        self._idle: list[_Member] = []
        self._nursery_manager = trio.open_nursery()

    async def __aenter__(self) -> Self:
        self._nursery = await self._nursery_manager.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        for member in self._idle:
            await member.stop()
        self._idle.clear()
        return await self._nursery_manager.__aexit__(kind, error, traceback)

    async def __call__(
        self, argv: Sequence[str], payload: bytes, *, identity: str = "", limit: float = LIMIT
    ) -> HelperRun:
        """Asks a helper about one server.

        Args:
            argv: program and arguments, the same at each call.
            payload: the question, without a line end in it.
            identity: the server that is asked about; for the log, and to be compared with that in the answer.
            limit: seconds until the answer, the start of the helper included if one had to be started.

        Returns:
            The answer's line, without its end.

        Raises:
            ValueError: the question has a line end in it.
            HelperError: as ``helper.process.run_helper``; the helper is dead then.
        """
        if b"\n" in payload:
            raise ValueError("a question is one line")
        async with self._places:
            member = await self._take(argv)
            begin = trio.current_time()
            fit = False
            try:
                with trio.move_on_after(limit) as clock:
                    if not await member.ask(self._nursery, payload + b"\n"):
                        await member.stop()
                        member = _Member(argv)
                        await member.ask(self._nursery, payload + b"\n")
                seconds = trio.current_time() - begin
                stderr = self._judge(member, identity, limit if clock.cancelled_caught else None)
                fit = not member.gone.is_set()
            finally:
                if fit:
                    self._idle.append(member)
                else:
                    await member.stop()
            return HelperRun(stdout=member.line(), seconds=seconds, stderr="\n".join(stderr))

    def _judge(self, member: _Member, identity: str, missed: float | None) -> list[str]:
        """Logs what it wrote on stderr and gives that, or raises what is wrong with the answer."""
        if member.child.refused is not None:
            raise not_started(member.argv, member.child.refused)
        stderr = [] if member.child.process is None else member.stderr()
        if missed is None:
            breach = member.breach(identity)
        else:
            breach = HelperTooSlow, f"had not answered after {missed:g} s and was killed"
        error = breach and complaint(breach[0], f"{member.argv[0]} {breach[1]}", stderr)
        log_stderr(stderr, identity, error)
        if error is not None:
            raise error
        return stderr

    async def _take(self, argv: Sequence[str]) -> _Member:
        while self._idle:
            member = self._idle.pop()
            if member.fit():
                return member
            stderr = member.stderr()
            last = f"; last on stderr: {stderr[-1]}" if stderr else ""
            log.warning("%s ended or said something unasked, and is replaced%s", member.argv[0], last)
            await member.stop()
        return _Member(argv)
