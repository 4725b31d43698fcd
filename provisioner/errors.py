"""The whole tree of errors, on one screen.

Every error carries ``reason``: one of the stable words that logs, metrics, the audit trail and the documentation
share (``docs/reasons.md``). No error text holds a secret. What ends a cycle without being an error (deferred, shut
down, locked, ...) is a value, not an exception: see ``cycle/outcome.py``.
"""

from collections.abc import Sequence

from attrs import frozen


class ProvisionerError(Exception):
    """Anything that this project foresees going wrong. ``reason`` is its stable word."""

    reason: str = "internal_error"


# --- the operator's own files --------------------------------------------------------------------------------------


@frozen
class Fault:
    """One thing wrong with one file: where, what was found there, and what would be right.

    ``found`` is the offending value as the operator wrote it, or None for a value that is missing or secret.
    """

    file: str
    key: str
    problem: str
    found: str | None = None

    def __str__(self) -> str:
        found = "" if self.found is None else f" (found {self.found})"
        key = f" {self.key}:" if self.key else ""
        return f"{self.file}:{key} {self.problem}{found}"


class ConfigError(ProvisionerError):
    """The operator's files can't be used as they are. Holds every fault found, not just the first.

    ``notes`` are told along with the faults: what would only be warned about in a file without them.
    """

    reason = "bad_configuration_file"

    def __init__(self, faults: Sequence[Fault], *, notes: Sequence[Fault] = ()) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(map(str, (*self.faults, *notes))))


# --- the bus -------------------------------------------------------------------------------------------------------


class BusError(ProvisionerError):
    """The message bus could not do what was asked."""


class ConnectionLost(BusError):
    """There is no connection now, or it went away while an answer was awaited."""

    reason = "connection_lost"


class NoReply(BusError):
    """Nobody answered in time."""

    reason = "no_reply"


class NoResponders(NoReply):
    """The server knows that nobody listens on that subject."""


class PermissionDenied(BusError):
    """The server does not let us publish to, or subscribe to, that subject."""

    reason = "refused"


class TooLarge(BusError):
    """The message is over the server's payload limit and was not sent."""

    reason = "bad_configuration"


class RevisionConflict(BusError):
    """A compare-and-set on a key found another revision than the one expected."""


class StoreError(BusError):
    """JetStream refused a request. ``code`` is its ``err_code``, the message its own words, bounded."""

    def __init__(self, message: str, code: int = 0) -> None:
        self.code = code
        super().__init__(message)


class BucketMissing(StoreError):
    """There is no such bucket (now): it was never made, or deleted."""


class Stale(BusError):
    """What is known of a bucket may be old, and could not be brought up to date in time. Says why."""

    reason = "no_reply"


class BadReply(BusError):
    """An answer came and can't be used: undecodable, of the wrong type, or a field is missing."""

    reason = "bad_reply"


class AnsweredTwice(BadReply):
    """Two different answers came to one request: somebody else answers in that server's place."""

    reason = "answered_twice"


# --- one server ----------------------------------------------------------------------------------------------------


class RemoteRefusal(ProvisionerError):
    """The server answered with a status other than OK.

    Attributes:
        code: the RPC status code, 1 to 5 (wire-protocol 5.3).
        text: the server's own words, bounded and without control characters.
        can_retry: False when asking again can't help (wrong token, unknown action, ...).
    """

    reason = "refused"

    def __init__(self, code: int, text: str, *, can_retry: bool = True) -> None:
        self.code = code
        self.text = text
        self.can_retry = can_retry
        super().__init__(text)


class Locked(RemoteRefusal):
    """Another provisioner holds this server's lock. An outcome to the cycle, not a fault of the server."""

    reason = "locked"


class TrustError(ProvisionerError):
    """A token, a challenge, a signing request or a key is not to be trusted. The message says claimed and found.

    Args:
        reason: one of ``jwt_*``, ``csr_*``, ``challenge_failed``, ``seal_failed``, ``bad_configuration``.
    """

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(message)


class BadConfiguration(ProvisionerError):
    """What the site's helper wants sent to a server can't be sent: empty, over a limit, or a bad name."""

    reason = "bad_configuration"


class UpgradeFailed(ProvisionerError):
    """A mandatory upgrade did not start."""

    reason = "upgrade_failed"


class UpgradeLoop(ProvisionerError):
    """A server was upgraded again and again and its version never changed."""

    reason = "upgrade_loop"


# --- the site's helper ---------------------------------------------------------------------------------------------


class HelperError(ProvisionerError):
    """The site's helper gave no usable answer. ``stderr`` is the printable tail of what it wrote there."""

    def __init__(self, message: str, *, stderr: str = "") -> None:
        self.stderr = stderr
        super().__init__(message)


class HelperNotStarted(HelperError):
    """It could not be started at all."""

    reason = "helper_not_started"


class HelperTooSlow(HelperError):
    """It had not finished at its limit, and was killed."""

    reason = "helper_too_slow"


class HelperFailed(HelperError):
    """It ended with a non-zero exit code or by a signal; what it printed is not used."""

    reason = "helper_failed"


class HelperSilent(HelperError):
    """It ended well and wrote nothing: zero bytes received."""

    reason = "helper_silent"


class HelperTooMuch(HelperError):
    """It wrote more than the limit, and was killed."""

    reason = "helper_too_much"


class HelperBadReply(HelperError):
    """What it wrote is not an answer: not JSON, or a field of the wrong type."""

    reason = "helper_bad_reply"


# --- who may act ---------------------------------------------------------------------------------------------------


class LostLead(ProvisionerError):
    """The term ended: this instance may not act any more. An outcome to the cycle."""

    reason = "lost_lead"


class ElectionUnknown(ProvisionerError):
    """The store can't be reached: neither leader nor not. Never the same as "no"."""


# --- the two mesh programs -----------------------------------------------------------------------------------------


class GrantError(ProvisionerError):
    """A manifest, a secret or the database refused what was asked. The message names the consumer or the file."""


class StatementRefused(GrantError):
    """PostgreSQL refused one statement. ``sqlstate`` is its five-character code, empty when it gave none."""

    reason = "refused"

    def __init__(self, message: str, sqlstate: str = "") -> None:
        self.sqlstate = sqlstate
        super().__init__(message)


class RunEnded(GrantError):
    """A run can't go on: the server can't be reached, went away or is busy, or we were told to stop."""

    reason = "connection_lost"


class RegistryError(ProvisionerError):
    """A registry question that can't be answered. ``code`` is the word of the answer (mesh.md B6)."""

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        super().__init__(message)


EXIT_OK: int = 0
EXIT_FINDING: int = 1
EXIT_REFUSED: int = 2
EXIT_UNREACHABLE: int = 3
EXIT_BUG: int = 70

EXIT_CODES: dict[int, str] = {
    EXIT_OK: "done; a daemon told to stop",
    EXIT_FINDING: "done in part, or a finding: a consumer failed, `check` found something",
    EXIT_REFUSED: "input refused (flags, configuration, manifest); nothing was changed",
    EXIT_UNREACHABLE: "the other side can't be reached or is busy (one-shot commands; a daemon keeps trying)",
    EXIT_BUG: "a bug: the traceback is on stderr",
}
"""Exit codes of all three programs (spec: outcomes 5)."""
