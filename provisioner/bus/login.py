"""What a client shows to a NATS server or a Choria broker when it connects."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from attrs import field, frozen

from provisioner.secret import Secret

_nothing = partial(Secret, "")


@frozen(kw_only=True)
class Credentials:
    """One connection's credentials; any combination, as a Choria broker may want user, password and token at once.

    Attributes:
        user: sent with ``password``.
        token: the ``auth_token`` of CONNECT: a plain token, or the JWT that a Choria broker reads.
        jwt: the ``jwt`` of CONNECT; goes with ``sign``.
        sign: signs the server's nonce (the bytes of its text, not decoded) with Ed25519; gives 64 raw bytes.
        creds_file: a NATS credentials file (JWT and NKey seed); excludes ``jwt`` and ``sign``.
    """

    user: str = ""
    password: Secret = field(factory=_nothing)
    token: Secret = field(factory=_nothing)
    jwt: Secret = field(factory=_nothing)
    sign: Callable[[bytes], bytes] | None = None
    creds_file: Path | None = None
