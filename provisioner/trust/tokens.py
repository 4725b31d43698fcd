"""Provisioning tokens: verified before anything of them is believed (wire-protocol 8.2).

A claim leaves this module when the signature over it has been verified, and not before.
"""

from typing import Any

from provisioner.choria.encoding import shown
from provisioner.errors import TrustError
from provisioner.trust.claims import REGISTERED, Shape, check_times, flag, free, shaped, text
from provisioner.trust.jws import verify_signature
from provisioner.trust.keys import VerificationKey

PURPOSE = "choria_provisioning"

_PROVISIONING: Shape = (
    ("cht", text),
    ("chs", flag),
    ("chu", text),
    ("chsrv", text),
    ("chpd", flag),
    ("chrd", text),
    ("chf", text),
    ("chusr", text),
    ("chpwd", text),
    ("extensions", free),
    ("ou", text),
    ("v2", flag),
    ("update", flag),
    *REGISTERED,
)


def verify_provisioning_token(token: str, key: VerificationKey, *, now: float) -> dict[str, Any]:
    """Verifies a server's ``provisioning.jwt`` and gives its claims, whole.

    Args:
        token: as the server sent it; blanks and newlines around it don't count.
        key: what it must be signed with.
        now: Unix time in seconds.

    Returns:
        The claims that the Go program knows, with its defaults, in the order and shape in which it hands them to
        the helper (wire-protocol 8.2, A.2). Dates are whole seconds, ``aud`` is a list.

    Raises:
        TrustError: ``jwt_missing``, ``jwt_malformed``, ``jwt_bad_algorithm``, ``jwt_bad_signature``,
            ``jwt_expired``, ``jwt_not_yet_valid`` or ``jwt_wrong_purpose``.
    """
    claims = shaped(verify_signature(token, key), _PROVISIONING)
    claims["ou"] = claims.get("ou") or "choria"
    claims = {name: claims[name] for name, _ in _PROVISIONING if name in claims}
    # `sub` counts only where there is no purpose, so that a client's token with an odd subject is no provisioning one.
    if (claims["purpose"] or claims.get("sub")) != PURPOSE:
        raise TrustError(
            "jwt_wrong_purpose", f"the token's purpose is {shown(claims['purpose'])}, which is not {PURPOSE}"
        )
    if claims.get("tcs") and not (claims.get("iss", "").startswith("C-") and "issexp" in claims):
        raise TrustError("jwt_malformed", "the token has a trust chain (tcs) but no chain issuer with an expiry")
    check_times(claims, now)
    return claims
