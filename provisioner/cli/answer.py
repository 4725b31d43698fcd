"""A helper's answer, and what would come of it, as an operator reads it. Private keys are never shown."""

from collections.abc import Iterator, Mapping

from provisioner.cli.screen import wrapped
from provisioner.cycle.outcome import KINDS
from provisioner.cycle.rehearsal import Complaint
from provisioner.helper.contract import HelperReply
from provisioner.printable import escaped
from provisioner.trust.inspection import certificate_facts, day

_LONGEST = 500
"""Characters of one value that are shown."""


def answer_lines(reply: HelperReply, width: int | None) -> Iterator[str]:
    """One line for each thing that the answer holds."""
    if reply.defer:
        wait = f", not before {reply.defer_for:g} s" if reply.defer_for else ""
        yield f"defer: leave it alone now{wait}"
    if reply.shutdown:
        yield "shutdown: stop the server"
    for name in ("msg", "reason", "upgrade", "ssldir"):
        if text := getattr(reply, name):
            yield wrapped(f"{name}: {escaped(text, _LONGEST)}", 2, width)
    if reply.configuration:
        yield f"configuration, {len(reply.configuration)} settings:"
        for key, value in sorted(reply.configuration.items()):
            yield wrapped(f"  {escaped(key, _LONGEST)} = {escaped(value, _LONGEST)}", 4, width)
    if reply.certificate:
        yield f"certificate: {_certificate(reply.certificate)}"
    if reply.ca:
        yield f"ca: {_certificate(reply.ca)}"
    if reply.key:
        yield "key: a private key, not shown; it is sealed for the server"
    if claims := reply.server_claims:
        yield wrapped(f"server_claims: {escaped(str(claims), _LONGEST)}", 2, width)
    yield from _policies("action_policies", reply.action_policies)
    yield from _policies("opa_policies", reply.opa_policies)


def _certificate(pem: str) -> str:
    try:
        found = certificate_facts(pem)
    except ValueError as error:
        return str(error)
    return f"{escaped(found.subject, 200)}, serial {found.serial}, until {day(found.not_after)}"


def _policies(name: str, policies: Mapping[str, str]) -> Iterator[str]:
    for file, text in sorted(policies.items()):
        yield f"{name}: {escaped(file, _LONGEST)}, {len(text)} characters"


def complaint_lines(complaints: tuple[Complaint, ...], width: int | None) -> Iterator[str]:
    """Each complaint with its reason word, and the cure for its kind once."""
    for complaint in complaints:
        yield wrapped(f"{complaint.word}: {escaped(complaint.text, 2000)}", 2, width)
    for word in dict.fromkeys(complaint.word for complaint in complaints):
        yield wrapped(f"what to do: {KINDS[word].cure}", 2, width)
