"""SCRAM verifiers against the RFC and against what PostgreSQL's own client library makes."""

import base64
import hashlib
import hmac
import re

import pytest

from provisioner.grants import scram


def test_the_example_of_rfc_7677() -> None:
    """The RFC gives the proof of the client and the signature of the server, which both keys must lead to."""
    nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    message = f"n=user,r=rOprNGfwEbeRWgbNEkqO,r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,c=biws,r={nonce}".encode()
    proof = base64.b64decode("dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    signature = base64.b64decode("6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")

    made = scram.verifier("pencil", salt=base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="), iterations=4096)

    head, salt, keys = made.split("$")[0], *made.split("$")[1:]
    assert (head, salt) == ("SCRAM-SHA-256", "4096:W22ZaJ0SNY7soEsUEjb6gQ==")
    stored_key, server_key = (base64.b64decode(key) for key in keys.split(":"))
    client_key = bytes(a ^ b for a, b in zip(proof, hmac.digest(stored_key, message, "sha256"), strict=True))
    assert hashlib.sha256(client_key).digest() == stored_key
    assert hmac.digest(server_key, message, "sha256") == signature


def test_it_is_133_characters_with_another_salt_each_time() -> None:
    first, second = scram.verifier("x"), scram.verifier("x")
    assert first != second
    assert len(first) == 133
    assert re.fullmatch(r"SCRAM-SHA-256\$4096:[A-Za-z0-9+/]{22}==\$[A-Za-z0-9+/]{43}=:[A-Za-z0-9+/]{43}=", first)


SALT = bytes(range(16))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("e\u0301", "\u00e9"),  # composed and decomposed
        ("a\u00a0b", "a b"),  # a space that isn't ASCII
        ("a\u00adb\u200d", "ab"),  # mapped to nothing
        ("\ufb01", "fi"),  # a ligature
        ("\u212b", "\u00c5"),
    ],
)
def test_what_saslprep_makes_the_same(one: str, other: str) -> None:
    assert scram.verifier(one, salt=SALT) == scram.verifier(other, salt=SALT)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("\ufb01\x07\u00e9", "fi\x07\u00e9"),  # a control character: taken as it stands
        ("\ufb01\U0001f600", "fi\U0001f600"),  # unassigned in Unicode 3.2: the same
        ("\u0627\ufb01", "\u0627fi"),  # right to left and left to right
        ("\u00ad", ""),
    ],
)
def test_what_saslprep_refuses_is_taken_as_it_stands(one: str, other: str) -> None:
    assert scram.verifier(one, salt=SALT) != scram.verifier(other, salt=SALT)
