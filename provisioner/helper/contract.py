"""What the site's helper is told and what it may answer: JSON in, JSON out, nothing of the process itself.

The contract is the reference program's (seed 2, wire-protocol A.2): a helper written for it runs here unchanged. Two
things are ours and ignored there, so that a helper stays portable: ``defer_for`` and ``reason``.
"""

import hashlib
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NewType, TypeVar

from attrs import Factory, field, fields, frozen, has
from cattrs import ClassValidationError, Converter
from cattrs.gen import make_dict_structure_fn

from provisioner.choria.encoding import dumps, shown
from provisioner.durations import parse_duration
from provisioner.errors import HelperBadReply
from provisioner.printable import escaped
from provisioner.secret import Secret
from provisioner.strictjson import NotJSON, loads

MAX_MSG = 1000
"""Characters of ``msg`` that are kept: it is one log line."""

MAX_DEFER = 30 * 86400.0
"""The longest ``defer_for``, seconds. Beyond a month it is a slip of the pen, and the server would be forgotten."""

MAX_EXP = 253402300799
"""The last second of the year 9999: no later ``exp`` is a time."""

_REASON = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")

# --- what the helper is told ---------------------------------------------------------------------------------------

_CSR_KEYS = ("csr", "public_key", "ssldir")
_ED25519_KEYS = ("public_key", "directory", "signature")

_SURROGATE = re.compile("[\ud800-\udfff]")


def _known(reply: Mapping[str, Any] | None, keys: tuple[str, ...]) -> dict[str, Any] | None:
    return None if reply is None else {key: reply.get(key, "") for key in keys}


def encode_input(
    *,
    identity: str,
    csr: Mapping[str, Any] | None,
    ed25519_pubkey: Mapping[str, Any] | None,
    inventory: str,
    jwt: Mapping[str, Any] | None,
    extra: Mapping[str, Any] | None = None,
) -> bytes:
    """What the helper reads on its standard input: one JSON object on one line, without a line end.

    The bytes are those of the reference program: compact, its order of keys, and ``<``, ``>``, ``&``, U+2028, U+2029
    as escapes. What a server adds to its reply beyond the known keys doesn't reach a helper.

    Args:
        identity: the server's identity.
        csr: the reply to ``gencsr`` (``csr``, ``public_key``, ``ssldir``), None unless ``features.pki``.
        ed25519_pubkey: the reply to ``gen25519`` (``public_key``, ``directory``, ``signature``), None unless
            ``features.ed25519``.
        inventory: the reply to ``rpcutil#inventory`` as JSON **text**.
        jwt: the claims of provisioning.jwt as ``trust.tokens.verify_provisioning_token`` gives them, in its order; None
            unless ``features.jwt``.
        extra: keys of ours (``attempt``, ``site``), put last; for sites that asked for them.

    Raises:
        ValueError: a number in it is NaN or infinite, which JSON can't say.
    """
    told = {
        "identity": identity,
        "csr": _known(csr, _CSR_KEYS),
        "ed25519_pubkey": _known(ed25519_pubkey, _ED25519_KEYS),
        "inventory": inventory,
        "jwt": jwt,
        **(extra or {}),
    }
    # Half a surrogate pair can't be encoded: as in the reference it becomes U+FFFD.
    return _SURROGATE.sub("\ufffd", dumps(told)).encode()


# --- what it may answer --------------------------------------------------------------------------------------------

Seconds = NewType("Seconds", float)
Word = NewType("Word", str)
Texts = Mapping[str, str]


@frozen(kw_only=True)
class ServerPermissions:
    """What a server's token lets it do beyond the ordinary (wire-protocol 8.3)."""

    submission: bool = False
    streams: bool = False
    governor: bool = False
    service_host: bool = False


@frozen(kw_only=True)
class ServerClaims:
    """The claims that a helper may ask for in a server's token; it may send others, which are ignored as unknown.

    Attributes:
        collectives: empty for the default of the server's configuration.
        ou: empty for ``choria``.
        permissions: None when the helper named none.
        pub_subjects: further subjects that the server may publish to.
        exp: absolute Unix time, seconds; None for the configured validity.
    """

    collectives: tuple[str, ...] = ()
    ou: str = ""
    permissions: ServerPermissions | None = None
    pub_subjects: tuple[str, ...] = ()
    exp: int | None = None


def _message(text: str) -> str:
    return escaped(text, MAX_MSG)


@frozen(kw_only=True)
class HelperReply:
    """A helper's answer about one server, checked for type and not yet for meaning. Every field is optional.

    Attributes:
        defer: leave the server alone now. Looked at first.
        shutdown: stop the server. Looked at second.
        msg: why, for the log: printable, bounded.
        key: private key in PEM.
        certificate: certificate in PEM.
        ca: CA chain in PEM.
        ssldir: the server's directory for the three.
        server_claims: wishes for the server's signed token, or None.
        configuration: the server's configuration; its values may be secrets and are not in the ``repr``.
        action_policies: file name to content.
        opa_policies: file name to content.
        upgrade: version to upgrade to.
        defer_for: with ``defer``: seconds in which this server isn't asked about again; 0 when not said.
        reason: a word of the site's own for the log; ``""`` when not said.
    """

    defer: bool = False
    shutdown: bool = False
    msg: str = field(default="", converter=_message)
    key: Secret = field(default=Factory(lambda: Secret("")))
    certificate: str = field(default="", repr=False)
    ca: str = field(default="", repr=False)
    ssldir: str = ""
    server_claims: ServerClaims | None = None
    configuration: Texts = field(factory=dict, repr=False)
    action_policies: Texts = field(factory=dict, repr=False)
    opa_policies: Texts = field(factory=dict, repr=False)
    upgrade: str = ""
    defer_for: Seconds = Seconds(0.0)
    reason: Word = Word("")


class _Wrong(ValueError):
    """One value that can't be taken. The text names what was found by type alone: the value may be a secret."""


T = TypeVar("T")

_KINDS: dict[type, str] = {
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "an array",
    dict: "an object",
    type(None): "null",
}


def _require(kind: type[T], value: Any, where: str = "") -> T:
    # A boolean is an int to Python and never one to JSON, hence no isinstance.
    if type(value) is not kind:
        raise _Wrong(f"{where}is {_KINDS[type(value)]}, must be {_KINDS[kind]}")
    return value


def _texts(value: Any, _: Any) -> Texts:
    found: dict[str, str | None] = _require(dict, value)
    for key, text in found.items():
        if type(text) is not str and text is not None:
            _require(str, text, f"has at {shown(key)} a value that ")
    # As in the reference, null in a map is a string's zero value.
    return {key: text or "" for key, text in found.items()}


def _list(value: Any, _: Any) -> tuple[str, ...]:
    return tuple(_require(str, text, "has a value that ") for text in _require(list, value))


def _exp(value: Any, _: Any) -> int:
    if type(value) is not float:
        _require(int, value)
    if not 0 <= value <= MAX_EXP:
        raise _Wrong("must be a Unix time in seconds")
    return int(value)


def _seconds(value: Any, _: Any) -> Seconds:
    text = _require(str, value)
    try:
        seconds = parse_duration(text)
    except ValueError:
        raise _Wrong("must be a duration such as 90s, 15m or 2d") from None
    if not 0 <= seconds <= MAX_DEFER or math.isnan(seconds):
        raise _Wrong(f"must be from 0s to {MAX_DEFER / 86400:.0f}d")
    return Seconds(seconds)


def _word(value: Any, _: Any) -> Word:
    text = _require(str, value)
    if text and not _REASON.fullmatch(text):
        raise _Wrong("must be one word of up to 64 letters, digits, '_', '.' or '-'")
    return Word(text)


def _object(cls: type[T]) -> Callable[[Any, Any], T]:
    """Structures one of our classes: keys in any case as in Go, null as absent, unknown keys ignored."""
    inner = make_dict_structure_fn(cls, _converter)
    known = {attribute.name for attribute in fields(cls)}  # type: ignore[arg-type]

    def structure(value: Any, _: Any) -> T:
        found: dict[str, Any] = {}
        for key, item in _require(dict, value).items():
            name = key.lower()
            if name in found:
                raise _Wrong(f"has the key {name!r} twice, in different cases")
            if name in known:
                found[name] = item
        return inner({name: item for name, item in found.items() if item is not None}, cls)

    return structure


_converter = Converter()
_converter.register_structure_hook(bool, lambda value, _: _require(bool, value))
_converter.register_structure_hook(str, lambda value, _: _require(str, value))
_converter.register_structure_hook(Secret, lambda value, _: Secret(_require(str, value)))
_converter.register_structure_hook(int, _exp)
_converter.register_structure_hook_func(lambda kind: kind == Texts, _texts)
_converter.register_structure_hook_func(lambda kind: kind == tuple[str, ...], _list)
_converter.register_structure_hook_func(lambda kind: kind is Seconds, _seconds)
_converter.register_structure_hook_func(lambda kind: kind is Word, _word)
_converter.register_structure_hook_factory(has, _object)


def _complaints(error: BaseException, path: str) -> Iterator[str]:
    if isinstance(error, ClassValidationError):
        for inner, note in error.group_exceptions()[0]:
            yield from _complaints(inner, f"{path}.{note.name}" if path else note.name)
    else:
        yield f"{path or 'it'} {error}"


def fingerprint(data: bytes) -> str:
    """What may be told of an answer that can't be read: its length and hash, for the site to find it again."""
    return f"{len(data)} bytes, SHA-256 {hashlib.sha256(data).hexdigest()}"


def decode_reply(data: bytes) -> HelperReply:
    """Reads a helper's answer.

    Keys match in any case and null means absent, as in the reference. A key that comes twice is refused: which of the
    two was meant can't be known.

    Args:
        data: all that the helper wrote on its standard output, already bounded.

    Raises:
        HelperBadReply: not JSON (the text tells length, SHA-256 and position), not an object, or a field of the wrong
            type (it names every such field and the type found). Never quotes the answer: it may hold a private key.
    """
    try:
        value = loads(data, unique_keys=True)
    except NotJSON as error:
        raise HelperBadReply(f"its answer is not JSON: {error} ({fingerprint(data)})") from None
    try:
        return _converter.structure(value, HelperReply)
    except (_Wrong, ClassValidationError) as error:
        raise HelperBadReply("its answer can't be used: " + "; ".join(_complaints(error, ""))) from None
