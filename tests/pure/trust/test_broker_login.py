"""Our own token and certificate, looked at before a broker refuses them without a reason."""

import base64
import datetime
import json
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from provisioner.errors import TrustError
from provisioner.trust.broker_login import ClientToken, check_client_token, check_own_certificate

NOW = 1_800_000_000
GOOD: dict[str, Any] = {
    "purpose": "choria_client_id",
    "callerid": "choria=provisioner_signer",
    "ou": "choria",
    "permissions": {"provisioner": True, "fleet_management": True},
    "exp": NOW + 3600,
}


def token(**claims: Any) -> str:
    parts = [{"alg": "EdDSA", "typ": "JWT"}, {key: value for key, value in (GOOD | claims).items() if value != "drop"}]
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return ".".join([*encoded, "c2lnbmF0dXJl"])


def test_a_good_token() -> None:
    found = check_client_token(token() + "\n", now=NOW)
    assert found == ClientToken("choria=provisioner_signer", "choria", NOW + 3600)
    assert str(found) == ("the token of choria=provisioner_signer (organization choria, until 2027-01-15T09:00:00Z)")
    assert check_client_token(token(issexp=NOW + 60, ou=7), now=NOW) == ClientToken(
        "choria=provisioner_signer", "", NOW + 60
    )


@pytest.mark.parametrize(
    ("claims", "reason", "text"),
    [
        ({"purpose": "choria_server"}, "jwt_wrong_purpose", "the token's purpose is 'choria_server'; a client token"),
        ({"purpose": "drop"}, "jwt_wrong_purpose", "'None'"),
        ({"callerid": ""}, "jwt_malformed", "the token has no callerid"),
        ({"callerid": 7}, "jwt_malformed", "the token has no callerid"),
        ({"permissions": "drop"}, "jwt_wrong_purpose", "lacks the permission `provisioner`"),
        ({"permissions": []}, "jwt_wrong_purpose", "lacks the permission `provisioner`"),
        ({"permissions": {"provisioner": "yes"}}, "jwt_wrong_purpose", "lacks the permission `provisioner`"),
        ({"exp": "drop"}, "jwt_expired", "never expires, which a broker takes for expired"),
        ({"exp": NOW - 60}, "jwt_expired", "expired at 2027-01-15T07:59:00Z; here it is 2027-01-15T08:00:00Z"),
        ({"issexp": NOW - 3600}, "jwt_expired", "expired at 2027-01-15T07:00:00Z"),
        ({"nbf": NOW + 61}, "jwt_not_yet_valid", "valid from 2027-01-15T08:01:01Z on; here it is 2027-01-15T08:00:00Z"),
        ({"exp": "soon"}, "jwt_malformed", "the token's claim exp must be a time"),
        ({"exp": True}, "jwt_malformed", "the token's claim exp must be a time"),
    ],
)
def test_a_token_that_a_broker_would_refuse(claims: dict[str, Any], reason: str, text: str) -> None:
    with pytest.raises(TrustError) as caught:
        check_client_token(token(**claims), now=NOW)
    assert caught.value.reason == reason
    assert text in str(caught.value)


@pytest.mark.parametrize("text", ["", "a.b", "a.b.c", "{}", "a" * 100_000])
def test_what_is_no_token(text: str) -> None:
    with pytest.raises(TrustError) as caught:
        check_client_token(text, now=NOW)
    assert caught.value.reason in {"jwt_missing", "jwt_malformed"}


class Maker:
    """Makes certificates; ``issuer`` None: signed by itself."""

    def __init__(self, name: str, issuer: "Maker | None" = None) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        by = issuer or self
        begin = datetime.datetime.fromtimestamp(NOW, datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(self.name)
            .issuer_name(by.name)
            .public_key(self.key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(begin + datetime.timedelta(hours=1))
        )
        self.pem = builder.sign(by.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


def test_certificates() -> None:
    root, other = Maker("root"), Maker("root")
    between = Maker("between", root)
    own, deep = Maker("own", root), Maker("deep", between)
    assert str(check_own_certificate(own.pem, root.pem, now=NOW)) == "the certificate of CN=own"
    assert check_own_certificate(own.pem, root.pem, now=NOW).issued_by_ours is True
    assert check_own_certificate(own.pem, other.pem + root.pem, now=NOW).issued_by_ours is True
    assert check_own_certificate(own.pem, other.pem, now=NOW).issued_by_ours is False
    assert check_own_certificate(own.pem, "", now=NOW).issued_by_ours is None
    assert check_own_certificate(deep.pem, root.pem, now=NOW).issued_by_ours is False
    assert check_own_certificate(deep.pem + between.pem, root.pem, now=NOW).issued_by_ours is True
    assert check_own_certificate(deep.pem + between.pem, other.pem, now=NOW).issued_by_ours is False
    # A chain that goes round ends.
    loop = Maker("loop")
    assert check_own_certificate(own.pem + loop.pem + loop.pem, other.pem, now=NOW).issued_by_ours is False


def test_a_chain_is_followed_to_a_bound() -> None:
    chain = [Maker("0")]
    for number in range(1, 14):
        chain.append(Maker(str(number), chain[-1]))
    text = "".join(maker.pem for maker in reversed(chain[1:]))
    assert check_own_certificate(text, chain[0].pem, now=NOW).issued_by_ours is False
    assert check_own_certificate(text, chain[5].pem, now=NOW).issued_by_ours is True


def test_certificates_out_of_time_or_none() -> None:
    own = Maker("own")
    with pytest.raises(TrustError, match="expired at 2027-01-15T09:00:00Z; here it is 2027-01-15T09:00:01Z"):
        check_own_certificate(own.pem, "", now=NOW + 3601)
    with pytest.raises(TrustError, match="is valid from 2027-01-15T08:00:00Z; here it is 2027-01-15T07:59:59Z"):
        check_own_certificate(own.pem, "", now=NOW - 1)
    with pytest.raises(TrustError, match="the certificate can't be read: PEM is wanted"):
        check_own_certificate("nonsense", "", now=NOW)
    with pytest.raises(TrustError, match="the authority's certificate can't be read"):
        check_own_certificate(own.pem, "nonsense", now=NOW)
