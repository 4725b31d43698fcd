"""Drives the election over the bus: finds the bucket, campaigns, renews, hands over (live 3; wire-protocol 10).

One task does it all, one question at a time, so a late answer of an old term can't reach a new one. A term runs beside
it and ends with it; the key is given up only after everything inside the term has ended.
"""

import logging
import random
from collections.abc import Callable

import trio

from provisioner.bus.interface import Bus, Message
from provisioner.errors import (
    BadReply,
    BusError,
    ConnectionLost,
    ElectionUnknown,
    NoReply,
    NoResponders,
    PermissionDenied,
)
from provisioner.leader import election
from provisioner.leader.election import TRANSITIONS, Act, Bucket, News, Rhythm, Standing
from provisioner.leader.lead import RunTerm
from provisioner.leader.term import Term, boottime

log = logging.getLogger(__name__)

BIND_EVERY = 2.0
"""Seconds between looks for a bucket that isn't there: a Choria broker makes it 31 to 59 s after it starts."""

REMIND_EVERY = 60.0
"""Seconds between log lines that say the same thing still holds."""

RESIGN_SECONDS = 1.5
"""What a polite hand-over may take of the time that a stop has."""


class Campaign:
    """One candidate.

    Args:
        bus: the shared connection.
        identity: the value written; other instances and operators read it.
        create_bucket: make the bucket on a plain NATS server when it is missing.
        clock: seconds of a clock that never stops.
    """

    def __init__(
        self, bus: Bus, identity: str, *, create_bucket: bool = False, clock: Callable[[], float] = boottime
    ) -> None:
        self._bus = bus
        self._identity = identity
        self._create = create_bucket
        self._clock = clock
        self._standing = Standing.STANDBY
        self._revision = 0
        self._told = 0
        self._wake = trio.Event()
        self._said = ("", 0.0)
        self.bucket: Bucket | None = None

    @property
    def role(self) -> str:
        """``leader``, ``standby``, or ``unknown`` while the store can't be reached."""
        if self._standing is Standing.LEADER:
            return "leader"
        return "standby" if self.bucket is not None else "unknown"

    @property
    def detail(self) -> str:
        """The bucket, or why it can't be used."""
        return self._said[0] if self.bucket is None else f"bucket {election.BUCKET}, {self.bucket.ttl:g} s"

    def mine(self, identity: str) -> bool:  # noqa: ARG002 - the seam's signature
        """A leader has all servers."""
        return True

    async def hold_terms(self, run_term: RunTerm, look_again: Callable[[], object]) -> None:  # noqa: ARG002
        """Runs until cancelled; then gives up the lead, if it has it."""
        log.info("Starting leader election against '%s'", election.KEY)
        async with self._bus.subscribe(election.HANDOVER, self._on_handover):
            while True:
                try:
                    bucket = self.bucket = await self._bind()
                except ElectionUnknown as error:
                    self.bucket = None
                    self._say(str(error))
                    await trio.sleep(BIND_EVERY)
                else:
                    await self._stand(bucket, run_term)

    async def _bind(self) -> Bucket:
        """Finds the bucket, on a Choria broker or a plain NATS server.

        Raises:
            ElectionUnknown: it can't be found or can't serve; the text says why.
        """
        try:
            for api in (election.CHORIA_API, election.PLAIN_API):
                try:
                    answer = await self._bus.request(election.info_subject(api), b"", timeout=5)
                except (NoResponders, PermissionDenied):
                    continue
                if (bucket := election.read_bucket(api, answer.data)) is not None:
                    self._say(
                        f"Found bucket {election.BUCKET}, its entries expire after {bucket.ttl:g} s", logging.INFO
                    )
                    return bucket
                if api == election.PLAIN_API and self._create:
                    await self._bus.request(*election.create_bucket_request(60), timeout=5)
                    return await self._bind()
        except (BusError, BadReply) as error:
            raise ElectionUnknown(f"The election waits: {error}") from None
        raise ElectionUnknown(
            f"The election waits: there is no bucket {election.BUCKET}. A Choria broker makes it within a minute "
            "of its start; on a plain NATS server set create_bucket: true"
        )

    async def _stand(self, bucket: Bucket, run_term: RunTerm) -> None:
        """Campaigns until the bucket is gone; a term is run for each time the key is won."""
        rhythm = Rhythm(bucket.ttl)
        while True:
            news, asked = await self._claim(bucket, rhythm)
            self._standing, act = TRANSITIONS[Standing.STANDBY, news]
            if act is Act.OPEN:
                await self._lead(bucket, rhythm, asked, run_term)
                if self.bucket is None:
                    return
            elif act is Act.BIND:
                self.bucket = None
                return
            else:
                # Spread, so that standbys don't ask in step; a told revision wakes at once.
                with trio.move_on_after(rhythm.campaign * random.uniform(0.75, 1.25)):  # noqa: S311
                    await self._wake.wait()

    async def _claim(self, bucket: Bucket, rhythm: Rhythm) -> tuple[News, float]:
        """One try to take the key: follow the revision we were told, or last held ourselves, else create.

        Taking it up at our own last revision proves that nobody wrote in between.
        """
        self._wake = trio.Event()
        candidates = [revision for revision in (self._told, self._revision) if revision]
        self._told = 0
        for expected in (*candidates, 0):
            asked = self._clock()
            news = await self._write(bucket, rhythm, expected)
            if news is News.GRANTED and self._clock() >= rhythm.term_end(asked):
                news = News.SILENT  # the answer came so late that the key has expired for others
            if news is not News.REFUSED:
                break
        return news, asked

    async def _write(
        self, bucket: Bucket, rhythm: Rhythm, expected: int, *, value: bytes | None = None, marker: bool = False
    ) -> News:
        """One create (``expected`` 0) or compare-and-set. Remembers the new revision."""
        headers = {election.EXPECTED: str(expected)} | ({"KV-Operation": "DEL"} if marker else {})
        data = self._identity.encode() if value is None else value
        try:
            answer = await self._bus.request(bucket.subject, data, timeout=rhythm.answer, headers=headers)
            news, revision = election.read_write(answer.data)
        except NoResponders:
            return News.GONE
        except (NoReply, ConnectionLost) as error:
            self._say(f"The election's store does not answer: {error}")
            return News.SILENT
        except (BusError, BadReply) as error:
            self._say(f"The election's store can't be used: {error}")
            return News.SILENT
        if news is News.GRANTED:
            self._revision = revision
        elif expected == self._revision:
            self._revision = 0
        return news

    async def _lead(self, bucket: Bucket, rhythm: Rhythm, asked: float, run_term: RunTerm) -> None:
        """One term: renews until it is lost or we are told to stop."""
        log.warning("Became leader after winning election")
        term = Term(rhythm.term_end(asked), clock=self._clock)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run_term, term)
                reason = await self._renew(bucket, rhythm, asked, term)
                term.end()
                log.warning("Lost leadership: %s", reason)
        except BaseException:
            # Told to stop, or a bug: everything inside the term has ended by now.
            with trio.move_on_after(RESIGN_SECONDS, shield=True):
                await self._resign(bucket, rhythm)
            raise
        finally:
            self._standing = Standing.STANDBY

    async def _renew(self, bucket: Bucket, rhythm: Rhythm, asked: float, term: Term) -> str:
        """Renews until the lead is lost.

        Returns:
            Why it was lost.
        """
        pause = rhythm.renew
        while True:
            await trio.sleep(max(0.0, min(asked + pause, term.ends) - self._clock()))
            asked = self._clock()
            news = News.OVER if asked >= term.ends else await self._write(bucket, rhythm, self._revision)
            if news is News.GRANTED and self._clock() >= term.ends:
                news = News.OVER
            self._standing, act = TRANSITIONS[Standing.LEADER, news]
            if act is Act.EXTEND:
                term.extend(rhythm.term_end(asked))
                pause = rhythm.renew
            elif act is Act.HURRY:
                asked, pause = self._clock(), rhythm.hurry
            else:
                if news is News.GONE:
                    self.bucket = None
                return {
                    News.REFUSED: "another instance holds the key",
                    News.GONE: f"bucket {election.BUCKET} is gone",
                }.get(news, "no renewal was confirmed in time")

    async def _resign(self, bucket: Bucket, rhythm: Rhythm) -> None:
        """Gives the lead up so that a standby of ours acts at once; without one the key is left to expire.

        A marker takes the key's place, and its revision is told: a standby follows it by compare-and-set, so that two
        of them can't both win (live 3).
        """
        try:
            await self._bus.request(election.HANDOVER, election.encode_handover(0, self._identity), timeout=0.5)
            if await self._write(bucket, rhythm, self._revision, value=b"", marker=True) is News.GRANTED:
                told = election.encode_handover(self._revision, self._identity)
                await self._bus.request(election.HANDOVER, told, timeout=0.5)
                log.info("Gave up the lead, and told the standbys")
        except BusError as error:
            log.info("Gave up the lead without a standby to take it: %s", error)

    def _on_handover(self, message: Message) -> None:
        """A leader stops: follow the revision it tells. We hear our own too, and leave it."""
        try:
            revision, sender = election.decode_handover(message.data)
        except BadReply as error:
            log.warning("A hand-over can't be read: %s", error)
            return
        if self._standing is Standing.LEADER:
            return
        if message.reply:
            self._bus.publish(message.reply, b"{}")
        if revision:
            log.info("%s gives up the lead", "".join(c if c.isprintable() else " " for c in sender[:255]))
            self._told = revision
            self._wake.set()

    def _say(self, text: str, level: int = logging.WARNING) -> None:
        """Logs what changed, and what hasn't once a minute."""
        now = trio.current_time()
        if text != self._said[0] or now - self._said[1] >= REMIND_EVERY:
            self._said = (text, now)
            log.log(level, text)
