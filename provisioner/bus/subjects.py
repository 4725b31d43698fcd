"""NATS subjects: which are well formed, and which a subscription's pattern covers."""

import re

_UNPRINTABLE = re.compile(r"[\s\x00-\x20\x7f]")


def check_subject(subject: str, *, pattern: bool = False) -> None:
    """Refuses what a NATS server would refuse, or worse, would take for two protocol lines.

    Args:
        subject: tokens with dots between them.
        pattern: allow the wildcards of a subscription: ``*`` for one token, ``>`` for all that follow.

    Raises:
        ValueError: it is empty, has white space, a control character, an empty token or a wildcard out of place
            (in the key of a key-value bucket no wildcard is out of place).
    """
    if not subject or _UNPRINTABLE.search(subject):
        raise ValueError(f"not a subject: {subject!r} is empty or has white space or a control character")
    tokens = subject.split(".")
    if "" in tokens:
        raise ValueError(f"not a subject: {subject!r} has an empty token")
    for position, part in enumerate(tokens, 1):
        wild = part == "*" or (part == ">" and position == len(tokens))
        # A careless client can store a key that has a wildcard in its name, and to delete it, one must be able to name
        # it; JetStream's API takes patterns of keys in subjects too.
        stored = not pattern and "$KV" in tokens
        if ("*" in part or ">" in part) and not (pattern and wild) and not stored:
            raise ValueError(f"not a subject: {subject!r} has a wildcard out of place")


def matches(pattern: str, subject: str) -> bool:
    """Tells whether a subscription to ``pattern`` gets a message sent to ``subject``."""
    if pattern == subject:
        return True
    wanted, tokens = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted = wanted[:-1]
        if len(tokens) <= len(wanted):
            return False
    elif len(wanted) != len(tokens):
        return False
    return all(want in ("*", token) for want, token in zip(wanted, tokens, strict=False))
