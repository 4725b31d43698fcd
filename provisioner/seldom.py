"""What strangers make us say is said once a minute: a flood of nonsense must not fill the disk with complaints."""

import logging
import time
from collections.abc import Callable

from attrs import define, field

PERIOD = 60.0
"""Seconds between two lines about the same thing. Metrics count each."""


@define
class Seldom:
    """Logs at most one line a minute for each word; the next one tells how many were left out.

    Attributes:
        log: where to.
        clock: seconds of a monotonic clock.
    """

    log: logging.Logger
    clock: Callable[[], float] = time.monotonic
    _said: dict[str, tuple[float, int]] = field(factory=dict)

    def warning(self, word: str, text: str, *args: object) -> None:
        """One warning about ``word``, which is one of a few fixed words and never text from outside."""
        now = self.clock()
        since, left_out = self._said.get(word, (-PERIOD, 0))
        if now - since < PERIOD:
            self._said[word] = (since, left_out + 1)
            return
        self._said[word] = (now, 0)
        if left_out:
            text += " (and %d more like it since the last such line)"
            args = (*args, left_out)
        self.log.warning(text, *args)
