"""Signing requests from strangers: accepted if nothing is wrong, and only then; only our error escapes."""

from collections.abc import Callable
from ipaddress import IPv4Address

import pytest
from attrs import define, field
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from hypothesis import given, settings
from hypothesis import strategies as st

from provisioner.trust.pem import armour
from provisioner.trust.request import MAX_REQUEST, DenyList, verify_request
from tests.pure.trust.material import reason_of, recorded_inputs
from tests.pure.trust.requests import CN, LABEL, ME, key_usage, name, named, pem, request, san

DENY = DenyList([r"\.mcollective$"])


@define
class Draft:
    """A request in the making, good until a violation is applied."""

    names: list[str] = field(factory=lambda: [ME])
    subject: list[x509.NameAttribute[str]] = field(factory=list)
    alternatives: list[x509.GeneralName] = field(factory=lambda: [x509.DNSName(ME)])
    extensions: list[x509.ExtensionType] = field(factory=list)
    attributes: list[tuple[str, bytes]] = field(factory=list)
    ends: list[Callable[[str], str]] = field(factory=list)

    def text(self) -> str:
        made = request(
            *(name(CN, one) for one in self.names),
            *self.subject,
            extensions=(san(*self.alternatives), *self.extensions),
            attributes=tuple(self.attributes),
        )
        text = pem(made)
        for end in self.ends:
            text = end(text)
        return text


VIOLATIONS: dict[str, Callable[[Draft], object]] = {
    "another name": lambda draft: draft.names.__setitem__(0, "n2.example.net"),
    "a second name": lambda draft: draft.names.append("root.mcollective"),
    "an e-mail address": lambda draft: draft.subject.append(name(NameOID.EMAIL_ADDRESS, "a@b")),
    "a name in a name": lambda draft: draft.subject.append(name(NameOID.ORGANIZATION_NAME, "x/CN=root")),
    "another host": lambda draft: draft.alternatives.append(x509.DNSName("n2.example.net")),
    "an address": lambda draft: draft.alternatives.insert(0, x509.IPAddress(IPv4Address("10.0.0.1"))),
    "a URI": lambda draft: draft.alternatives.append(x509.UniformResourceIdentifier("spiffe://root")),
    "an authority": lambda draft: draft.extensions.append(x509.BasicConstraints(ca=True, path_length=None)),
    "any purpose": lambda draft: draft.extensions.append(
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE])
    ),
    "signing": lambda draft: draft.extensions.append(key_usage(key_cert_sign=True)),
    "a right of Puppet": lambda draft: draft.extensions.append(
        x509.UnrecognizedExtension(x509.ObjectIdentifier("1.3.6.1.4.1.34380.1.3.1"), b"\x0c\x04root")
    ),
    "a password": lambda draft: draft.attributes.append(("1.2.840.113549.1.9.7", b"x")),
    "two blocks": lambda draft: draft.ends.append(lambda text: text + named()),
    "text in front": lambda draft: draft.ends.append(lambda text: "x" + text),
    "another label": lambda draft: draft.ends.append(lambda text: text.replace("CERTIFICATE REQUEST", "CERTIFICATE")),
    "length": lambda draft: draft.ends.append(lambda text: text + "\n" * MAX_REQUEST),
    "a changed byte": lambda draft: draft.ends.append(_change_signature),
}


def _change_signature(text: str) -> str:
    """Another last-but-some character of the last full line: inside the signature."""
    lines = text.splitlines()
    at = max(index for index, line in enumerate(lines) if line and not line.startswith("-")) - 1
    lines[at] = ("A" if lines[at][20] != "A" else "B").join((lines[at][:20], lines[at][21:]))
    return "\n".join(lines) + "\n"


@settings(max_examples=150, deadline=None)
@given(st.sets(st.sampled_from(sorted(VIOLATIONS)), max_size=4))
def test_accepted_if_and_only_if_nothing_is_wrong(wrong: set[str]) -> None:
    draft = Draft()
    for violation in sorted(wrong):
        VIOLATIONS[violation](draft)
    reason = reason_of(lambda: verify_request(draft.text(), ME, DENY))
    assert (reason == "accepted") is (not wrong)
    assert reason == "accepted" or reason.startswith("csr_")


@pytest.mark.parametrize("violation", sorted(VIOLATIONS))
def test_each_violation_alone_is_refused(violation: str) -> None:
    draft = Draft()
    VIOLATIONS[violation](draft)
    assert reason_of(lambda: verify_request(draft.text(), ME, DENY)) != "accepted"


ORIGINALS = (
    request(name(CN, ME), extensions=(san(x509.DNSName(ME)),)).public_bytes(serialization.Encoding.DER),
    x509.load_pem_x509_csr(recorded_inputs("v1")[1][1]["csr"]["csr"].encode()).public_bytes(serialization.Encoding.DER),
)
"""Always the same bytes, as the search needs: Ed25519 with an extension, and a recorded RSA one."""


class TestHostile:
    @settings(max_examples=300, deadline=None)
    @given(st.text() | st.binary().map(lambda body: armour(LABEL, body)))
    def test_no_text_is_too_odd(self, text: str) -> None:
        assert reason_of(lambda: verify_request(text, ME, DENY)) == "csr_malformed"
        reason_of(lambda: verify_request(named(), ME, DENY, public_key=text))

    @settings(max_examples=500, deadline=None)
    @given(st.data())
    def test_no_change_of_a_good_one_is_too_odd(self, data: st.DataObject) -> None:
        """Bytes changed, cut out or put in: the library may say what it likes, we answer with one of our words."""
        der = bytearray(data.draw(st.sampled_from(ORIGINALS)))
        original = bytes(der)
        for _ in range(data.draw(st.integers(1, 3))):
            at = data.draw(st.integers(0, len(der) - 1))
            match data.draw(st.sampled_from(["change", "cut", "put"])):
                case "change":
                    der[at] = data.draw(st.integers(0, 255))
                case "cut":
                    del der[at : at + data.draw(st.integers(1, 4))]
                case _:
                    der[at:at] = data.draw(st.binary(min_size=1, max_size=4))
        reason = reason_of(lambda: verify_request(armour(LABEL, bytes(der)), ME, DENY))
        assert (reason == "accepted") is (bytes(der) == original)
