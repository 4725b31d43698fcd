"""A value that is never shown: passwords, tokens and private keys travel through this program inside it."""

from typing import final

MASK = "****"


@final
class Secret:
    """Holds one secret text. Its ``repr``, ``str`` and format are ``****``; ``reveal()`` is the only way out.

    Two secrets are equal when their texts are; a secret is unhashable, so it can't become a key or a label.
    """

    __slots__ = ("_text",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself. Call it only where the value leaves for its one destination."""
        return self._text

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    def __repr__(self) -> str:
        return MASK

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return MASK

    def __reduce__(self) -> str:
        raise TypeError("a secret is not pickled")
