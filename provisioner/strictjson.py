"""JSON from strangers: decoded within bounds, or refused with a short reason.

Python's parser takes more than JSON (NaN, lone surrogates) and fails in more than one way (recursion, huge integers).
Everything that arrives from outside goes through here, so that a hostile text is one ``ValueError`` and nothing else.
"""

import json
from math import isfinite
from typing import Any, NoReturn

MAX_DEPTH = 200
"""Lists and objects within one another; what is real has ten. Whoever walks through a value may do so by recursion.

The parser's own bound is no bound to build on: a thousand calls in Python 3.11 and 3.12, thousands of levels in 3.13.
"""


class NotJSON(ValueError):
    """The text is not JSON that we take. The message never quotes the text: it may hold a secret."""


def _no_constant(name: str) -> NoReturn:
    raise NotJSON(f"{name} is not JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise NotJSON("an object has the same key twice")
    return found


def _finite(digits: str) -> float:
    number = float(digits)
    if not isfinite(number):
        raise NotJSON("a number is out of range")
    return number


_lenient = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite)
_strict = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite, object_pairs_hook=_unique)
_plain = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_sorted = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True).encode


def loads(text: bytes | str, *, unique_keys: bool = False) -> Any:
    """Decodes one JSON text.

    Args:
        text: the JSON, as UTF-8 bytes or as text. The caller has bounded its length.
        unique_keys: refuse an object that has a key twice (else the last one counts, as in Go).

    Returns:
        dict, list, str, int, float, bool or None.

    Raises:
        NotJSON: not UTF-8, not JSON, NaN or Infinity, nested too deep, an integer of thousands of digits,
            or text with a lone surrogate (which no encoder could send on).
    """
    try:
        if isinstance(text, bytes):
            text = text.decode()
        value = (_strict if unique_keys else _lenient).decode(text)
        if "\\u" in text:
            # A lone surrogate can only come from an escape; encoding is the cheapest complete test for it.
            _plain(value).encode()
    except NotJSON:
        raise
    except UnicodeDecodeError as error:
        raise NotJSON(f"not UTF-8 at byte {error.start}") from None
    except UnicodeEncodeError:
        raise NotJSON("a text has half of a surrogate pair") from None
    except RecursionError:
        raise NotJSON("nested too deep") from None
    except json.JSONDecodeError as error:
        raise NotJSON(f"{error.msg} at character {error.pos}") from None
    except ValueError:
        raise NotJSON("an integer has too many digits") from None
    # Counting what opens a level is quick, and nearly always enough.
    if text.count("[") + text.count("{") > MAX_DEPTH and _is_too_deep(value):
        raise NotJSON("nested too deep")
    return value


def _is_too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        inside = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)]
        if not inside:
            return False
        level = [each for values in inside for each in values]
    return True


def dumps(value: Any, *, sort_keys: bool = False) -> str:
    """Encodes compactly, as Go's encoder does where it matters: no spaces, text as it stands, no NaN."""
    return (_sorted if sort_keys else _plain)(value)
