"""The one verb: exactly one answer to each question, whatever it holds and whatever happens (spec: mesh B6).

Questions are answered side by side: one that waits for a slow bucket holds up no other.
"""

import logging
import time
from collections.abc import Mapping
from contextlib import suppress

import trio

from provisioner.bus.interface import Bus, Message
from provisioner.errors import BusError, ConnectionLost, RegistryError, TooLarge
from provisioner.registry.answer import INTERNAL, UNAVAILABLE, answer, error_answer, parse_request
from provisioner.registry.buckets import Mirror
from provisioner.registry.client import VERB
from provisioner.registry.metrics import ANSWERED, UNKNOWN, Metrics

log = logging.getLogger(__name__)

MAX_OPEN = 1000
"""Questions at once. Each holds at most its own bytes until its answer; one more is told ``unavailable`` at once."""

MAX_UNSENT = 8 * 1024 * 1024
"""Bytes of answers that may be on their way to the server. A hundred full pages at once would be more than the bus,
or the asker's place at the server, holds; so further answers wait until these have arrived there."""

SEND_WITHIN = 2.0
"""Seconds in which an answer that is ready may wait for a connection."""

GROUP = "mesh-provisioner"
"""The queue group: at roll-over, when two instances hold the seat for a moment, a question still gets one answer."""


class Verb:
    """Answers questions on ``VERB`` from the mirrors of the four buckets, by their word."""

    def __init__(self, bus: Bus, mirrors: Mapping[str, Mirror], metrics: Metrics) -> None:
        self._bus = bus
        self._mirrors = mirrors
        self._metrics = metrics
        self._open = 0
        self._pace = trio.Lock()
        self._unsent = 0

    async def run(self, task_status: "trio.TaskStatus[None]" = trio.TASK_STATUS_IGNORED) -> None:
        """Answers until cancelled; what is open then is told ``unavailable``.

        Raises:
            PermissionDenied: the account may not subscribe to the verb.
        """
        async with trio.open_nursery() as nursery:

            def take(message: Message) -> None:
                if self._may_answer(message):
                    # Counted here: a burst arrives before the first of its tasks runs.
                    self._count(+1)
                    nursery.start_soon(self._answer, message)

            async with self._bus.subscribe(VERB, take, queue=GROUP):
                task_status.started()
                await trio.sleep_forever()

    def _may_answer(self, message: Message) -> bool:
        # We may publish wherever an asker wants its answer, and into the registry besides. An answer sent to a
        # subject of the server's own, such as a bucket's, would let any asker write there through us.
        if not message.reply:
            self._metrics.ignored.labels("no_reply_subject").inc()
        elif message.reply.startswith("$") or message.reply == VERB:
            self._metrics.ignored.labels("reply_subject").inc()
            log.warning("A question wants its answer on %.100r and gets none", message.reply)
        elif self._open >= MAX_OPEN:
            self._metrics.requests.labels(UNKNOWN, UNAVAILABLE).inc()
            self._send(message.reply, error_answer(UNAVAILABLE, f"{MAX_OPEN} questions are being answered, ask again"))
        else:
            return True
        return False

    async def _answer(self, message: Message) -> None:
        started = time.monotonic()
        what, outcome, data = UNKNOWN, UNAVAILABLE, error_answer(UNAVAILABLE, "the service is stopping")
        try:
            request = parse_request(message.data)
            what = request.shape.what
            reading = await self._mirrors[what].read()
            async with self._pace:  # meanwhile the rows can only become newer
                if self._unsent > MAX_UNSENT:
                    with suppress(BusError):  # without a connection, nothing can be sent, which is told then
                        await self._bus.flush()
                    self._unsent = 0
                data = answer(request, reading.rows, reading.sequence, self._bus.max_payload)
                self._unsent += len(data)
            outcome = ANSWERED
        except RegistryError as error:
            outcome, data = error.code, error_answer(error.code, str(error))
        except Exception:  # the edge of one question
            log.exception("A question could not be answered")
            outcome, data = INTERNAL, error_answer(INTERNAL, "the service failed on this question; its log says why")
        finally:
            sent = self._send(message.reply, data)
            self._count(-1)
            self._metrics.requests.labels(what, outcome).inc()
            self._metrics.request_time.observe(time.monotonic() - started)
        if not sent:
            # The asker may well be connected, while we are not, or not yet after an outage.
            with trio.move_on_after(SEND_WITHIN):
                await self._bus.wait_connected()
                sent = self._send(message.reply, data)
            if not sent:
                self._metrics.ignored.labels("not_sent").inc()
                log.warning("An answer could not be sent within %g s: %s", SEND_WITHIN, self._bus.last_error)

    def _count(self, change: int) -> None:
        self._open += change
        self._metrics.open_requests.set(self._open)

    def _send(self, reply: str, data: bytes) -> bool:
        """Sends an answer; False when there is no connection."""
        try:
            try:
                self._bus.publish(reply, data)
            except TooLarge as error:  # the limit was lowered since the answer was made
                self._bus.publish(reply, error_answer(UNAVAILABLE, str(error)))
        except ConnectionLost:
            return False
        except (BusError, ValueError) as error:
            self._metrics.ignored.labels("not_sent").inc()
            log.warning("An answer could not be sent: %s", error)
        return True
