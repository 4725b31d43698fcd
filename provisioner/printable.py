"""Text from strangers, made fit for one line of a log, a terminal or a status page."""


def escaped(text: str, limit: int | None = None) -> str:
    """A stranger's text with nothing of it lost within the limit, and nothing left that a terminal would obey.

    Args:
        text: anything, lone surrogates included.
        limit: characters to keep; what was cut is shown as ``…``. None keeps all.

    Returns:
        The text with each character that isn't printable as a backslash escape, at most ``limit`` + 1 characters.
    """
    safe = text if limit is None else text[: limit + 1]
    if not safe.isprintable():
        safe = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in safe)
    return safe if limit is None or len(safe) <= limit else safe[:limit] + "…"
