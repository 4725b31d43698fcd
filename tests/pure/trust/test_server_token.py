"""Server tokens: the recorded one is made again byte for byte; the helper gets what it asks for, or a refusal."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest
from attrs import evolve, frozen

from provisioner.choria.ids import parse_ksuid
from provisioner.errors import BadConfiguration, TrustError
from provisioner.trust.chain import ChainIssuer
from provisioner.trust.jws import sign
from provisioner.trust.keys import SigningKey
from provisioner.trust.server_token import (
    Issued,
    ServerTokenIssuer,
    Wishes,
    load_server_token_issuer,
    verify_server_token,
)
from tests.pure.trust.material import (
    KEYS,
    NOW,
    RECORDED,
    organization,
    payload_of,
    reason_of,
    recorded_token,
    rsa_signer,
    seeded,
)

YEAR = 365 * 86400
PUBLIC = seeded(3).public_hex
ME = "n1.example.net"


@frozen(kw_only=True)
class Permissions:
    submission: bool = False
    streams: bool = False
    governor: bool = False
    service_host: bool = False


@frozen(kw_only=True)
class Asked:
    """What a helper may ask for."""

    collectives: tuple[str, ...] = ()
    ou: str = ""
    permissions: Permissions | None = None
    pub_subjects: tuple[str, ...] = ()
    exp: int | None = None


def issue(
    wishes: Wishes | None = None, configuration: Mapping[str, str] | None = None, key: SigningKey | None = None
) -> tuple[dict[str, Any], Issued]:
    """A token without a chain, and its claims as verified."""
    key = key or seeded(7)
    issued = ServerTokenIssuer(key, float(YEAR)).issue(ME, PUBLIC, configuration or {}, wishes, now=NOW + 0.75)
    claims = verify_server_token(issued.token.reveal(), key.public, now=NOW)
    assert (claims["jti"], claims["exp"]) == (issued.jti, issued.expires)
    return claims, issued


def refused(token: str, key: SigningKey | None = None, now: float = NOW) -> TrustError:
    with pytest.raises(TrustError) as caught:
        verify_server_token(token, (key or organization()).public, now=now)
    return caught.value


class TestRecording:
    def test_the_recorded_token_is_verified_through_its_chain(self) -> None:
        claims = verify_server_token(recorded_token("issued-server"), organization().public, now=RECORDED)
        assert claims == payload_of(recorded_token("issued-server"))
        assert claims["permissions"] == {"streams": True}
        assert (claims["identity"], claims["pub_subjects"]) == (ME, ["foo.>"])

    def test_it_is_made_again_byte_for_byte(self) -> None:
        recorded = payload_of(recorded_token("issued-server"))
        issued_at, payload = parse_ksuid(recorded["jti"])
        assert issued_at == recorded["iat"]
        issuer = load_server_token_issuer(KEYS / "signer.seed", KEYS / "signer.jwt", 10.0 * YEAR, now=issued_at)
        wishes = Asked(permissions=Permissions(streams=True), pub_subjects=("foo.>",), collectives=("choria",))
        issued = evolve(issuer, entropy=lambda _: payload).issue(
            ME, recorded["public_key"], {}, wishes, now=issued_at + 0.9
        )
        # The one difference: ours begins a minute earlier, for servers whose clock is behind.
        assert payload_of(issued.token.reveal()) == recorded | {"nbf": issued_at - 60}
        assert sign(payload_of(issued.token.reveal()) | {"nbf": issued_at}, issuer.key) == recorded_token(
            "issued-server"
        )
        assert (issued.jti, issued.expires) == (recorded["jti"], recorded["issexp"])

    def test_a_token_made_by_the_organization_itself(self) -> None:
        claims = verify_server_token(recorded_token("broker-server"), organization().public, now=RECORDED)
        assert claims == payload_of(recorded_token("broker-server"))

    def test_others_are_no_server_tokens(self) -> None:
        for name in ("signer", "provisioning-v2"):
            assert refused(recorded_token(name), now=RECORDED).reason == "jwt_wrong_purpose"

    def test_after_its_time(self) -> None:
        assert refused(recorded_token("issued-server"), now=1827494725 + 60).reason == "jwt_expired"
        assert refused(recorded_token("issued-server"), now=RECORDED - YEAR).reason == "jwt_not_yet_valid"


class TestSpecificationsExample:
    """wire-protocol 8.5: seeds 32 x 0x01 and 32 x 0x02."""

    ORGANIZATION = seeded(1)
    ISSUER_KEY = seeded(2)
    ISSUER = ChainIssuer(
        id="2SuceJJSOvYKDQeokIzeWOMm9Sq",
        public_key="8139770ea87d175f56a35466c34c7ecccb8d8a91b4ee37a25df60f5b8fc9b394",
        signature=(
            "b57418e20094c002365198e95057ac15dec1374aee7c397085d8efdf1350ea37"
            "c71ce9d916539897a60b7aacc68deeb5e60cb2cf8cf235206e9e2f4b56239607"
        ),
        expires=1_750_000_000,
    )

    def test_keys(self) -> None:
        assert self.ORGANIZATION.public_hex == "8a88e3dd7409f195fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5c"
        assert self.ISSUER_KEY.public_hex == self.ISSUER.public_key

    def test_the_chain(self) -> None:
        issuer = ServerTokenIssuer(
            self.ISSUER_KEY, float(YEAR), self.ISSUER, entropy=lambda length: bytes(range(length))
        )
        issued = issuer.issue(ME, PUBLIC, {}, None, now=1_700_000_000)
        claims = verify_server_token(issued.token.reveal(), self.ORGANIZATION.public, now=1_700_000_000)
        assert claims["jti"] == issued.jti == "2YBXZHqCjn9u9XPqNaTCk9OXKKF"
        assert claims["iss"] == f"C-2SuceJJSOvYKDQeokIzeWOMm9Sq.{self.ISSUER.public_key}"
        assert claims["tcs"] == (
            f"{self.ISSUER.signature}."
            "97868b5fb16e0480488697167fec811ea423071cc67c02f496c4f385d06978b9"
            "1f57e7a920f9f9fe632bca81cc43e7e0d29a6d1195a243f822b1609bb16ed405"
        )
        assert (claims["exp"], claims["issexp"]) == (1_700_000_000 + YEAR, 1_750_000_000)

    def test_nothing_outlives_its_issuer(self) -> None:
        issuer = ServerTokenIssuer(self.ISSUER_KEY, 100.0 * YEAR, self.ISSUER)
        for wishes in (None, Asked(exp=1_760_000_000)):
            issued = issuer.issue(ME, PUBLIC, {}, wishes, now=1_700_000_000)
            claims = payload_of(issued.token.reveal())
            assert claims["exp"] == claims["issexp"] == issued.expires == 1_750_000_000


class TestClaims:
    def test_what_a_server_gets_when_the_helper_asks_for_nothing(self) -> None:
        claims, issued = issue()
        assert claims == {
            "identity": ME,
            "collectives": ["mcollective"],
            "ou": "choria",
            "purpose": "choria_server",
            "public_key": PUBLIC,
            "iss": "Choria Provisioner",
            "exp": NOW + YEAR,
            "nbf": NOW - 60,
            "iat": NOW,
            "jti": issued.jti,
        }
        assert list(claims) == [
            "identity",
            "collectives",
            "ou",
            "purpose",
            "public_key",
            "iss",
            "exp",
            "nbf",
            "iat",
            "jti",
        ]
        assert parse_ksuid(issued.jti)[0] == NOW
        assert issue()[1].jti != issued.jti
        assert issued.token.reveal() not in repr(issued)

    def test_signed_with_rsa(self) -> None:
        claims, issued = issue(key=rsa_signer())
        assert claims["identity"] == ME
        assert issued.token.reveal().startswith("eyJhbGciOiJSUzI1NiIsInR5cCI6IkpXVCJ9.")

    @pytest.mark.parametrize(
        ("asked", "configuration", "collectives"),
        [
            ((), {}, ["mcollective"]),
            ((), {"plugin.security.provider": "choria"}, ["choria"]),
            ((), {"plugin.security.provider": "file"}, ["mcollective"]),
            ((), {"collectives": "a, b"}, ["a", "b"]),
            ((), {"collectives": "a,b", "plugin.security.provider": "choria"}, ["a", "b"]),
            (("c",), {"collectives": "a,b"}, ["c"]),
            ((" c ", "d_1.x-y"), {}, ["c", "d_1.x-y"]),
        ],
    )
    def test_collectives(self, asked: tuple[str, ...], configuration: dict[str, str], collectives: list[str]) -> None:
        assert issue(Asked(collectives=asked), configuration)[0]["collectives"] == collectives

    @pytest.mark.parametrize("name", ["*", ">", "", " ", "a b", "a.*", "a..b", ".a", "a,b", "ü", "a\n"])
    def test_what_is_no_collective(self, name: str) -> None:
        good = name.strip() == "a"
        for wishes in (Asked(collectives=(name,)), Asked(collectives=("a", name))):
            assert reason_of(partial(issue, wishes)) == ("accepted" if good else "bad_configuration")
        with pytest.raises(BadConfiguration, match="configuration: collectives has '"):
            issue(configuration={"collectives": f"x,{name or ' '},*"})

    def test_permissions(self) -> None:
        assert "permissions" not in issue(Asked())[0]
        assert issue(Asked(permissions=Permissions()))[0]["permissions"] == {}
        everything = Permissions(submission=True, streams=True, governor=True, service_host=True)
        claims, issued = issue(Asked(permissions=everything))
        assert claims["permissions"] == dict.fromkeys(["submission", "streams", "governor", "service_host"], True)
        assert list(payload_of(issued.token.reveal())["permissions"]) == list(claims["permissions"])

    def test_organization_and_subjects(self) -> None:
        claims, _ = issue(Asked(ou="acme", pub_subjects=("a.>", "b.*.<&")))
        assert (claims["ou"], claims["pub_subjects"]) == ("acme", ["a.>", "b.*.<&"])

    @pytest.mark.parametrize("subject", ["", "a b", "a\n", "ü", "a" * 256])
    def test_what_is_no_subject(self, subject: str) -> None:
        with pytest.raises(BadConfiguration, match="server_claims: pub_subjects has '"):
            issue(Asked(pub_subjects=("fine", subject)))

    def test_a_key_is_32_bytes_and_written_in_lower_case(self) -> None:
        issuer = ServerTokenIssuer(seeded(7), float(YEAR))
        issued = issuer.issue(ME, PUBLIC.upper(), {}, None, now=NOW)
        assert payload_of(issued.token.reveal())["public_key"] == PUBLIC
        for key in ("", PUBLIC[:-2], "x" * 64):
            assert reason_of(partial(issuer.issue, ME, key, {}, None, now=NOW)) == "challenge_failed"

    @pytest.mark.parametrize("ahead", [3601, 86400, 100 * YEAR])
    def test_an_expiry_is_honoured_to_the_second(self, ahead: int) -> None:
        assert issue(Asked(exp=NOW + ahead))[0]["exp"] == NOW + ahead

    @pytest.mark.parametrize(
        "exp", [0, 157_680_000, NOW - 1, NOW, NOW + 1800, NOW + 3600, NOW * 1000, NOW + 101 * YEAR]
    )
    def test_or_refused_never_replaced(self, exp: int) -> None:
        with pytest.raises(BadConfiguration, match=f"server_claims: exp {exp} is "):
            issue(Asked(exp=exp))

    def test_the_refusal_says_what_would_be_right(self) -> None:
        with pytest.raises(BadConfiguration) as caught:
            issue(Asked(exp=157_680_000))
        assert str(caught.value) == (
            "server_claims: exp 157680000 is 1974-12-31T00:00:00Z, and now it is 2027-01-15T08:00:00Z. It is an"
            " absolute time in seconds since 1970, more than an hour ahead and less than 100 years; leave it out for"
            " server_jwt_validity"
        )
