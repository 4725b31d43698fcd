"""Text from strangers, made fit for one line of a log, a terminal or a status page."""


def printable(text: str, limit: int | None = None) -> str:
    """``text`` with each character that a terminal would obey, or not show, written as an escape.

    Args:
        text: any text, lone surrogates included.
        limit: characters to keep; what is cut is shown as ``…``. None keeps all.
    """
    if limit is not None and len(text) > limit:
        text = text[:limit] + "…"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
