"""How long to wait before trying again: Choria's two tables (wire-protocol 12)."""

from attrs import frozen


@frozen
class Backoff:
    """A table of nominal pauses, in milliseconds."""

    milliseconds: tuple[int, ...]

    def pause(self, tries: int, luck: float) -> float:
        """Seconds to wait after ``tries`` failures: within half and one and a half times the nominal pause.

        Args:
            tries: failures so far: 1 after the first. Beyond the table its last entry counts.
            luck: uniform in [0, 1), such as ``random.random()``.
        """
        nominal = self.milliseconds[min(tries, len(self.milliseconds) - 1)]
        return (nominal / 2 + int(luck * nominal)) / 1000


FIVE_SEC = Backoff((500, 750, *range(1000, 5001, 500)))
"""Choria's default."""
TWENTY_SEC = Backoff(
    (
        *(500, 750, *range(1000, 5501, 500), 5750, *range(6000, 10501, 500), 10750),
        *(*range(11000, 15501, 500), 15750, *range(16000, 20001, 500)),
    )
)
"""Between connections and between election campaigns."""
