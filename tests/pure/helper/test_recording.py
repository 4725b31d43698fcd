"""Recorded helper inputs: the bytes a helper gets, secrets masked, and never a reason to stop."""

import json
import logging
from pathlib import Path

import pytest

from provisioner.helper import recording
from provisioner.helper.contract import encode_input
from provisioner.helper.recording import Recorder, file_name, masked

CLAIMS = {"cht": "s3cret-token", "chu": "nats://b:4222", "chusr": "u", "chpwd": "pass-word", "ou": "choria"}


def payload(identity: str = "n1.example.net", **changes: object) -> bytes:
    told = {"csr": None, "ed25519_pubkey": None, "inventory": '{"a":"<b>"}', "jwt": CLAIMS} | changes
    return encode_input(identity=identity, **told)  # type: ignore[arg-type]


def test_only_the_secrets_differ() -> None:
    expected = payload(jwt=CLAIMS | {"cht": "****", "chpwd": "****"})
    assert masked(payload()) == expected
    assert b"\\u003cb\\u003e" in expected
    assert masked(payload(jwt=None)) == payload(jwt=None)
    assert masked(payload(jwt={"cht": ""})) == payload(jwt={"cht": ""})


def test_one_file_a_server_for_its_owner_only(tmp_path: Path) -> None:
    record = Recorder(tmp_path)
    record("n1.example.net", payload())
    record("n1.example.net", payload(inventory="{}"))
    record("n2.example.net", payload("n2.example.net"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["n1.example.net.json", "n2.example.net.json"]
    file = tmp_path / "n1.example.net.json"
    assert json.loads(file.read_bytes())["inventory"] == "{}"
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("identity", ["a/b", "../x", "n" * 255])
def test_a_name_stays_in_the_directory(identity: str) -> None:
    name = file_name(identity)
    assert "/" not in name
    assert len(name) <= 255
    assert name != file_name(identity + "x")


def test_what_cannot_be_written_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    record = Recorder(tmp_path / "gone")
    record("n1.example.net", payload())
    record("n1.example.net", payload())
    assert [one.getMessage() for one in caplog.records] == [
        f"Helper inputs are not recorded in {tmp_path / 'gone'}: No such file or directory"
    ]
    (tmp_path / "gone").mkdir()
    record("n1.example.net", payload())
    assert (tmp_path / "gone" / "n1.example.net.json").exists()


def test_a_directory_does_not_fill_without_bound(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(recording.MAX_FILES):
        (tmp_path / str(number)).touch()
    Recorder(tmp_path)("n1.example.net", payload())
    assert not (tmp_path / "n1.example.net.json").exists()
    assert "it has 10000 files" in caplog.text
