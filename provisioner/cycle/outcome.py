"""What a cycle can end in: one table for log, metric, reason and return (spec: outcomes 1 and 2).

An outcome is a value. Errors are raised inside the cycle and become outcomes at its edge (``fleet/crew.py``).
"""

from attrs import frozen

SETTLE_SECONDS = 60.0
"""A server that restarts goes on answering discovery for a while; it isn't taken twice (cases A 5)."""


@frozen
class Kind:
    """How one word behaves.

    Attributes:
        error: counts in ``provision_errors`` and is logged as an error.
        rest: seconds before the server is admitted again; None means one discovery interval.
        cause: what it means, for the documentation.
        cure: what an operator does about it.
    """

    error: bool
    rest: float | None
    cause: str
    cure: str


def _fine(rest: float, cause: str, cure: str = "Nothing to do.") -> Kind:
    return Kind(False, rest, cause, cure)


def _error(cause: str, cure: str, rest: float | None = 0.0) -> Kind:
    return Kind(True, rest, cause, cure)


KINDS: dict[str, Kind] = {
    "provisioned": _fine(SETTLE_SECONDS, "configure and restart were accepted by the server."),
    "deferred": _fine(
        0.0,
        "The helper said `defer`: not now.",
        "Read the helper's message; the server is asked again when it is next seen, or after `defer_for`.",
    ),
    "shut_down": _fine(SETTLE_SECONDS, "The helper said `shutdown` and the server accepted."),
    "upgrading": _fine(
        0.0,
        "`release_update` was accepted; the server restarts with the other version.",
        "It is provisioned when it comes back. If it never does, look at the server.",
    ),
    "locked": _fine(
        0.0,
        "Another provisioner holds this server's lock (two minutes after its last call).",
        "Nothing, if another provisioner is at work. Else find out who else uses this collective.",
    ),
    "stale": _fine(
        0.0,
        "The server waited longer than two intervals for a worker and was dropped, at no cost.",
        "It is taken up when it is next seen. Many of these: more `workers`, or a faster helper.",
    ),
    "lost_lead": _fine(
        0.0,
        "This instance stopped being the leader while the cycle ran; nothing was sent afterwards.",
        "The next leader takes the server up.",
    ),
    "no_reply": _error(
        "An action got no answer in its time, after all its tries.",
        "Is the server there? Is its clock within 60 s of ours? Requests outside that are dropped unanswered.",
    ),
    "refused": _error(
        "The server answered with a status other than OK; its words are in the log.",
        "`Incorrect provision token supplied`: compare `token` with the provisioning.jwt's `cht`.",
    ),
    "bad_reply": _error(
        "An answer could not be decoded, or a field was missing or of the wrong type.",
        "Look at the server's version and log; something other than a Choria Server may be answering.",
    ),
    "answered_twice": _error(
        "Two different answers came to one request: something else answers in that server's place.",
        "Treat the provisioning account as hostile: any server in it can do this. Find who shares the identity.",
    ),
    "jwt_missing": _error("The server sent no provisioning.jwt.", "Put a provisioning.jwt on the server."),
    "jwt_malformed": _error("The provisioning.jwt is not a token.", "Replace the file on the server."),
    "jwt_bad_algorithm": _error(
        "The token names an algorithm that the verification key does not have.",
        "Is `jwt_verify_cert` the key that signed it? An RSA key accepts RS256, RS384 and RS512; an Ed25519 key EdDSA.",
    ),
    "jwt_bad_signature": _error(
        "The token was not signed by the key of `jwt_verify_cert`, or was changed.",
        "Compare the signer; a server with a foreign token must not be provisioned.",
    ),
    "jwt_expired": _error(
        "The token's time is over (60 s leeway).", "Issue a new provisioning.jwt; check both clocks."
    ),
    "jwt_not_yet_valid": _error(
        "The token's time has not begun (60 s leeway).", "Check both clocks; the log has both."
    ),
    "jwt_wrong_purpose": _error("The token is not a provisioning token.", "Put the right token on the server."),
    "challenge_failed": _error(
        "The server could not prove that it holds the Ed25519 key it sent.",
        "Look at the server's version and log; do not provision it by hand.",
    ),
    "csr_malformed": _error("What came is not one PEM certificate request.", "Look at the server's version and log."),
    "csr_bad_signature": _error(
        "The request is not signed by its own key.", "Do not sign it by hand; look at the server."
    ),
    "csr_wrong_name": _error(
        "The request does not name exactly this server.",
        "The log has both names. The identity and the common name must be equal, letter for letter.",
    ),
    "csr_denied": _error("A name in the request matches `cert_deny_list`.", "Rename the server, or change the list."),
    "csr_extension": _error(
        "The request asks for more than a server's certificate: another name, a CA, an extension.",
        "The log names it. `cert_allow_extensions` lets chosen ones by.",
    ),
    "helper_not_started": _error("The helper could not be started.", "Try it: `choria-provisioner helper`."),
    "helper_too_slow": _error(
        "The helper had not finished after 10 seconds and was killed.", "Make it faster or `defer`."
    ),
    "helper_failed": _error(
        "The helper ended with an exit code other than 0, or by a signal.", "Its stderr is in the log."
    ),
    "helper_silent": _error("The helper wrote nothing to stdout.", "It must print one JSON object."),
    "helper_too_much": _error("The helper wrote over 1 MiB and was killed.", "It must print one JSON object."),
    "helper_bad_reply": _error(
        "What the helper wrote is not an answer.", "The log names the field and the type found."
    ),
    "bad_configuration": _error(
        "What the helper answered can't be sent: empty, over a limit, a bad policy name, claims refused.",
        "The log names it. Try the input: `choria-provisioner helper --input FILE`.",
    ),
    "seal_failed": _error(
        "The private key from the helper can't be sealed for the server.",
        "`features.jwt` must be on, and the key must be an unencrypted RSA key in PEM.",
    ),
    "upgrade_failed": _error(
        "The upgrade was mandatory and did not start.",
        "The server's words are in the log. `upgrades_optional: true` goes on without it.",
    ),
    "upgrade_loop": _error(
        "Three upgrades were accepted and the server's version never changed.",
        "Look at the server and the repository; the count starts anew when the version changes.",
    ),
    "connection_lost": _error("The bus went away under the cycle.", "Nothing: the next discovery takes the server up."),
    "internal_error": _error(
        "A bug: something unforeseen in this one cycle; the traceback is in the log.",
        "Please report it. The server is left alone for one interval.",
        rest=None,
    ),
}
"""Every reason word, in the order of the specification. Nothing else is ever an ``outcome`` label."""


@frozen
class Outcome:
    """How one cycle ended.

    Attributes:
        word: a key of ``KINDS``.
        text: the line for the log, without secrets.
        step: the step it ended in, such as ``Fetching JWT``; ``""`` for none.
        rest: seconds before the server may be admitted again; None takes the kind's own.
        reason: the helper's own word for it, when it gave one.
    """

    word: str
    text: str
    step: str = ""
    rest: float | None = None
    reason: str = ""

    @property
    def kind(self) -> Kind:
        """How this word behaves."""
        return KINDS[self.word]
