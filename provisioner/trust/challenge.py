"""The Ed25519 challenge: a server shows that it holds the private half of the key it wants a token for (7.3)."""

import secrets

from nacl.exceptions import BadSignatureError
from nacl.signing import VerifyKey

from provisioner.errors import TrustError
from provisioner.trust.keys import unhex


def fresh_nonce() -> str:
    """A nonce for one try: 32 hex characters, as the Go program's (the agent takes at most 64)."""
    return secrets.token_hex(16)


def verify_challenge(public_key: str, signature: str, nonce: str) -> str:
    """Verifies that ``signature`` over the text of ``nonce`` was made with the private half of ``public_key``.

    Args:
        public_key: the server's key, 64 hex characters.
        signature: 128 hex characters.
        nonce: what this very server was sent in this very try.

    Returns:
        The key in lower-case hex. libsodium refuses the points of small order, with which anybody could sign.

    Raises:
        TrustError: ``challenge_failed``.
    """
    try:
        key = unhex(public_key, 32)
    except ValueError as error:
        raise TrustError("challenge_failed", f"the server's Ed25519 public key is {error}") from None
    try:
        signed = unhex(signature, 64)
    except ValueError as error:
        raise TrustError("challenge_failed", f"the server's signature of the nonce is {error}") from None
    try:
        VerifyKey(key).verify(nonce.encode(), signed)
    except BadSignatureError:
        raise TrustError(
            "challenge_failed", "the nonce is not signed by the Ed25519 key that the server sent"
        ) from None
    return key.hex()
