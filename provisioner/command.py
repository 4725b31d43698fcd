"""A command as the operator writes it, split into words as a shell would. No shell ever sees it."""

import shlex


def split_command(text: str) -> tuple[str, ...]:
    """Splits one command line: quotes and backslashes count, ``$``, ``;``, ``|`` and backticks are plain characters.

    Args:
        text: such as ``/opt/prov/helper.rb --site 'New York'``.

    Returns:
        At least one word; the first is the program.

    Raises:
        ValueError: a quote is not closed, the text ends in a backslash, has a NUL, or names no program.
    """
    if "\0" in text:
        raise ValueError("has a NUL character")
    try:
        words = shlex.split(text)
    except ValueError as error:
        problem = "a quote is not closed" if "quotation" in str(error) else "ends in a backslash"
        raise ValueError(problem) from None
    if not words or not words[0]:
        raise ValueError("names no program")
    return tuple(words)
