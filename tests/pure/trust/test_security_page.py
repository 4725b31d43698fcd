"""The page on security names tests that exist, and every reason word that trust gives."""

import re
from pathlib import Path

import provisioner.trust

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "security.md").read_text()


def test_every_test_that_it_names_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE)
    assert len(named) > 20
    for path, name in named:
        text = (ROOT / path).read_text()
        assert not name or re.search(rf"^(class|async def|def) {name}\b", text, re.MULTILINE), f"{path}::{name}"


def test_every_reason_that_trust_gives_is_explained() -> None:
    folder = Path(provisioner.trust.__path__[0])
    given = {
        word
        for module in folder.glob("*.py")
        for word in re.findall(r'"((?:jwt|csr)_\w+|challenge_failed|seal_failed)"', module.read_text())
    } - {"jwt_verify_cert", "jwt_signing_key", "jwt_signing_token"}
    assert {"jwt_expired", "csr_denied", "seal_failed"} <= given
    explained = set(re.findall(r"`(\w+)`", PAGE[PAGE.index("## Reason words") :]))
    assert given <= explained
