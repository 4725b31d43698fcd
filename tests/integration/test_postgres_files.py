"""The host's files: what is read whole, what is refused, and that no path or mode is trusted (mesh.md A5.7, A5.8)."""

import contextlib
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from provisioner.errors import GrantError
from provisioner.grants import files
from provisioner.grants.files import Delivery


def lay(grants: Path, *consumers: Any, mode: int = 0o644) -> Path:
    path = grants / "mesh.json"
    path.write_text(json.dumps({"consumers": list(consumers)}))
    path.chmod(mode)
    return path


def secret(path: Path, data: bytes = b"pw\n", mode: int = 0o600) -> Path:
    path.write_bytes(data)
    path.chmod(mode)
    return path


WIKI = {"node": "n1", "module": "wiki"}


@pytest.fixture
def grants(tmp_path: Path) -> Path:
    folder = tmp_path / "grants"
    folder.mkdir(mode=0o755)
    return folder


def read(grants: Path) -> Delivery:
    return files.read(grants / "mesh.json", grants, provision="database")


def refusal(grants: Path) -> str:
    """Why the one consumer can't be served."""
    found = read(grants)
    assert found.secrets == {}
    (refused,) = found.manifest.refused
    return refused.why


def test_manifest_and_secrets(grants: Path) -> None:
    lay(grants, WIKI)
    secret(grants / "n1.wiki.secret")
    found = read(grants)
    assert found.secrets[("n1", "wiki")].reveal() == "pw"
    assert len(found.sha256) == 64
    assert found.manifest.notes == ()
    assert "pw" not in repr(found)


@pytest.mark.parametrize(
    ("data", "password"),
    [
        (b"s3cret", "s3cret"),
        (b"s3cret\n", "s3cret"),
        (b"s3cret\r\n", "s3cret"),
        (b" s3cret \n", " s3cret "),
        (b'"s3cret"\n', '"s3cret"'),
        (b"\xef\xbb\xbfs3cret\n", "\ufeffs3cret"),
        ("é".encode(), "é"),
    ],
)
def test_one_final_newline_goes_and_nothing_else(data: bytes, password: str) -> None:
    assert files.decode_secret(data).reveal() == password


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "is empty"),
        (b"\n", "is empty"),
        (b"\r\n", "is empty"),
        (b"pw\n\n", "holds more than one line, or a NUL"),
        (b"a\nb", "holds more than one line, or a NUL"),
        (b"pw\r", "holds more than one line, or a NUL"),
        (b"a\0b", "holds more than one line, or a NUL"),
        (b"\xff", "is not UTF-8"),
        (b"x" * (files.MAX_SECRET_BYTES + 1), "is longer than 65536 bytes"),
    ],
)
def test_secrets_that_can_not_be_used(grants: Path, data: bytes, why: str) -> None:
    lay(grants, WIKI)
    secret(grants / "n1.wiki.secret", data)
    assert refusal(grants) == f"secret file {why}"


@pytest.mark.parametrize("mode", [0o644, 0o660, 0o604, 0o602, 0o620, 0o777, 0o601])
def test_a_secret_that_others_can_read_or_write(grants: Path, mode: int) -> None:
    lay(grants, WIKI)
    secret(grants / "n1.wiki.secret", mode=mode)
    assert refusal(grants) == f"secret file has mode {mode:04o}: must be 0600 or 0640"


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o400, 0o440])
def test_modes_that_are_fine(grants: Path, mode: int) -> None:
    lay(grants, WIKI)
    secret(grants / "n1.wiki.secret", mode=mode)
    assert list(read(grants).secrets) == [("n1", "wiki")]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_secret_of_another_user(grants: Path) -> None:
    lay(grants, WIKI)
    os.chown(secret(grants / "n1.wiki.secret"), 12345, -1)
    assert refusal(grants) == "secret file belongs to user 12345: must be root's or ours"


def test_a_secret_that_is_missing(grants: Path) -> None:
    lay(grants, WIKI)
    assert refusal(grants) == "secret file n1.wiki.secret can't be read: No such file or directory"


def test_what_is_no_file_does_not_block(grants: Path) -> None:
    lay(grants, WIKI)
    os.mkfifo(grants / "n1.wiki.secret", 0o600)
    assert refusal(grants) == "secret file is not a regular file"
    (grants / "mesh.json").unlink()
    os.mkfifo(grants / "mesh.json", 0o600)
    with pytest.raises(GrantError, match="is not a regular file"):
        read(grants)


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/etc/shadow", "/etc/shadow is outside of the grants directory"),
        ("../n1.wiki.secret", "leads out of the grants directory"),
        ("sub/../../n1.wiki.secret", "leads out of the grants directory"),
        ("n2.wiki.secret", "must be called n1.wiki.secret (the manifest says 'n2.wiki.secret')"),
        ("", "must be called n1.wiki.secret (the manifest says '')"),
    ],
)
def test_paths_that_lead_out(grants: Path, path: str, why: str) -> None:
    (grants / "sub").mkdir()
    secret(grants.parent / "n1.wiki.secret")
    lay(grants, WIKI | {"secret": path})
    assert why in refusal(grants)


def test_paths_that_stay_in(grants: Path) -> None:
    (grants / "sub").mkdir()
    secret(grants / "sub" / "n1.wiki.secret")
    for path in ("sub/n1.wiki.secret", f"{grants}/sub/n1.wiki.secret", "sub/../sub/n1.wiki.secret"):
        lay(grants, WIKI | {"secret": path})
        assert list(read(grants).secrets) == [("n1", "wiki")], path


def test_links_that_lead_out(grants: Path) -> None:
    outside = secret(grants.parent / "n1.wiki.secret")
    lay(grants, WIKI)
    for target in (str(outside), "../n1.wiki.secret"):
        (grants / "n1.wiki.secret").symlink_to(target)
        assert "leads out of the grants directory" in refusal(grants)
        (grants / "n1.wiki.secret").unlink()
    (grants / "n1.wiki.secret").symlink_to("n1.wiki.secret")
    assert refusal(grants) == "secret file is a link to a link, and so on without end"


def test_a_directory_that_is_swapped_by_a_link(grants: Path) -> None:
    """What Kubernetes does: each file is a link through ..data, which is swapped for another directory."""
    for generation in ("one", "two"):
        (grants / f"..{generation}").mkdir()
        secret(grants / f"..{generation}" / "n1.wiki.secret", generation.encode())
        lay(grants / f"..{generation}", WIKI)
    (grants / "mesh.json").symlink_to("..data/mesh.json")
    (grants / "n1.wiki.secret").symlink_to("..data/n1.wiki.secret")
    for generation in ("one", "two"):
        (grants / "..fresh").symlink_to(f"..{generation}")
        (grants / "..fresh").replace(grants / "..data")
        assert read(grants).secrets[("n1", "wiki")].reveal() == generation


def test_the_grants_directory_may_be_a_link_itself(grants: Path) -> None:
    lay(grants, WIKI | {"secret": f"{grants}/n1.wiki.secret"})
    secret(grants / "n1.wiki.secret")
    link = grants.parent / "current"
    link.symlink_to("grants")
    assert list(files.read(link / "mesh.json", link, provision="database").secrets) == [("n1", "wiki")]


def test_a_manifest_that_is_a_link_out_of_the_grants_directory(grants: Path) -> None:
    lay(grants.parent, WIKI)
    (grants / "mesh.json").symlink_to("../mesh.json")
    with pytest.raises(GrantError, match="is a link that leads out of the grants directory"):
        read(grants)


def test_a_manifest_somewhere_else(grants: Path) -> None:
    secret(grants / "n1.wiki.secret")
    path = lay(grants.parent, WIKI)
    assert list(files.read(path, grants, provision="database").secrets) == [("n1", "wiki")]


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_a_manifest_that_others_may_write(grants: Path, mode: int) -> None:
    lay(grants, WIKI, mode=mode)
    with pytest.raises(GrantError, match=f"mesh.json has mode {mode:04o}: others may write to it"):
        read(grants)


@pytest.mark.parametrize("which", ["grants", "parent"])
@pytest.mark.parametrize("mode", [0o775, 0o757])
def test_a_directory_that_others_may_write(grants: Path, which: str, mode: int) -> None:
    lay(grants, WIKI)
    folder = grants if which == "grants" else grants.parent
    folder.chmod(mode)
    with pytest.raises(GrantError, match=f"the directory {folder} has mode {mode:04o}"):
        read(grants)


def test_a_sticky_directory_is_fine(grants: Path) -> None:
    lay(grants, WIKI)
    secret(grants / "n1.wiki.secret")
    grants.parent.chmod(0o1777)
    assert list(read(grants).secrets) == [("n1", "wiki")]


def test_no_manifest_and_no_directory(grants: Path) -> None:
    with pytest.raises(GrantError, match=r"mesh\.json can't be read: No such file"):
        read(grants)
    with pytest.raises(GrantError, match=r"nowhere can't be read"):
        files.read(grants / "mesh.json", grants / "nowhere", provision="database")


def test_a_manifest_over_the_limit(grants: Path) -> None:
    lay(grants).write_bytes(b" " * (4 * 1024 * 1024 + 1))
    with pytest.raises(GrantError, match="is longer than 4194304 bytes"):
        read(grants)


def test_secrets_that_nobody_has_are_told(grants: Path) -> None:
    lay(grants, WIKI)
    secret(grants / "n1.wiki.secret")
    secret(grants / "n9.old.secret")
    assert read(grants).manifest.notes == ("n9.old.secret is named by no consumer",)
    for number in range(30):
        secret(grants / f"n9.m{number:02}.secret")
    notes = read(grants).manifest.notes
    assert len(notes) == 21
    assert notes[-1] == "11 more secret files are named by no consumer"


def test_no_mixture_is_read_while_everything_is_swapped(grants: Path) -> None:
    """Two generations, swapped as fast as can be: one of them is read, or none; nobody vanishes in between."""
    generations = ("one", "two")
    for generation in generations:
        (grants / f"..{generation}").mkdir()
        lay(grants / f"..{generation}", WIKI, {"node": "n1", "module": generation})
        secret(grants / f"..{generation}" / "n1.wiki.secret", b"pw")
        secret(grants / f"..{generation}" / f"n1.{generation}.secret", b"pw")
    (grants / "mesh.json").symlink_to("..data/mesh.json")
    for name in ("wiki", *generations):
        (grants / f"n1.{name}.secret").symlink_to(f"..data/n1.{name}.secret")
    (grants / "..data").symlink_to("..one")
    ended = threading.Event()

    def swap() -> None:
        while not ended.is_set():
            for generation in generations:
                (grants / "..fresh").symlink_to(f"..{generation}")
                (grants / "..fresh").replace(grants / "..data")
                ended.wait(0.01)

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        whole = 0
        for _ in range(100):
            with contextlib.suppress(GrantError):  # it changed at each of its tries: nothing is done then
                found = read(grants)
                whole += 1
                assert found.manifest.asked in ({("n1", "wiki"), ("n1", "one")}, {("n1", "wiki"), ("n1", "two")})
                assert ("n1", "wiki") in found.secrets
        assert whole > 0
    finally:
        ended.set()
        swapping.join()


def test_a_manifest_that_changes_while_the_secrets_are_read(grants: Path) -> None:
    """Only its inode's times change here, all the time: what was read of it may be old by the end."""
    entries = [{"node": "n1", "module": f"m{number}"} for number in range(200)]
    manifest = lay(grants, *entries)
    for entry in entries:
        secret(grants / f"n1.{entry['module']}.secret")
    ended = threading.Event()

    def change() -> None:
        while not ended.is_set():
            os.utime(manifest)

    changing = threading.Thread(target=change)
    changing.start()
    try:
        # Once is enough to see it; each has three tries.
        with pytest.raises(GrantError, match="changes again and again while it is read"):
            [read(grants) for _ in range(50)]
    finally:
        ended.set()
        changing.join()


def test_the_signature_sees_every_way_to_change(grants: Path) -> None:
    manifest = lay(grants, WIKI)
    path = secret(grants / "n1.wiki.secret", b"aaa")
    seen = [files.signature(manifest, grants)]

    def changed() -> bool:
        seen.append(files.signature(manifest, grants))
        return seen[-1] != seen[-2]

    assert not changed()
    status = path.stat()
    path.write_bytes(b"bbb")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert changed()
    secret(grants / "n2.mail.secret")
    assert changed()
    (grants / "n2.mail.secret").unlink()
    assert changed()
    manifest.unlink()
    assert changed()
    lay(grants)
    assert changed()
    whole = grants.rename(grants.parent / "old")
    assert changed()
    grants.mkdir()
    lay(grants)
    assert changed()
    assert whole.exists()
