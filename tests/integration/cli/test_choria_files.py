"""choria.cfg: which file, what overrides it, what is told when it isn't there."""

import os
from pathlib import Path

import pytest

from provisioner.cli.choria_files import MAX_BYTES, _facter, load_choria_settings, own_identity
from provisioner.errors import ConfigError


def faults(path: Path | None, home: Path, cwd: Path) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_choria_settings(path, environ={"HOME": str(home)}, working_directory=cwd)
    return [str(fault) for fault in caught.value.faults]


def test_the_files_override_one_another(tmp_path: Path) -> None:
    etc, cwd = tmp_path / "etc", tmp_path / "work" / "here"
    (etc / "plugin.d").mkdir(parents=True)
    cwd.mkdir(parents=True)
    main = etc / "choria.cfg"
    main.write_text("identity = main\nplugin.choria.srv_domain = main\nttl = 40\nplugin.nats.user = main\n")
    (etc / "plugin.d" / "choria.cfg").write_text("srv_domain = plugin\n")
    (tmp_path / "work" / "choria.conf").write_text("ttl = 50\nplugin.nats.user = work\n")
    (cwd / "choria.conf").write_text("plugin.nats.user = here\n")
    found = load_choria_settings(main, environ={"HOME": "/nowhere"}, working_directory=cwd)
    assert (found.identity, found.srv_domain, found.ttl, found.nats_user) == ("main", "plugin", 50, "here")
    # plugin.d doesn't count for a file in the home directory.
    found = load_choria_settings(main, environ={"HOME": str(tmp_path)}, working_directory=cwd)
    assert found.srv_domain == "main"


def test_the_usual_places(tmp_path: Path) -> None:
    (tmp_path / ".mcollective").write_text("identity = second\n")
    assert load_choria_settings(None, environ={"HOME": str(tmp_path)}, working_directory=tmp_path).identity == "second"
    (tmp_path / ".choriarc").write_text("identity = first\n")
    assert load_choria_settings(None, environ={"HOME": str(tmp_path)}, working_directory=tmp_path).identity == "first"


def test_nothing_in_the_usual_places_names_the_flag(tmp_path: Path) -> None:
    if any(Path(p).exists() for p in ("/etc/choria/client.conf", "/usr/local/etc/choria/client.conf")):
        pytest.skip("this machine has a Choria client configuration")
    (said,) = faults(None, tmp_path, tmp_path)
    assert said.startswith("--choria-config: name a Choria client configuration; there is none of ")
    assert f"{tmp_path}/.choriarc" in said


def test_a_named_file_must_be_there(tmp_path: Path) -> None:
    assert faults(tmp_path / "x", tmp_path, tmp_path) == [f"{tmp_path}/x: there is no such file"]
    assert faults(tmp_path, tmp_path, tmp_path) == [f"{tmp_path}: can't be read: Is a directory"]


def test_every_fault_is_told_with_its_file(tmp_path: Path) -> None:
    main = tmp_path / "choria.cfg"
    main.write_text("ttl = soon\n")
    (tmp_path / "choria.conf").write_text("discovery_timeout = never\n")
    said = faults(main, tmp_path, tmp_path)
    assert [line.split(": ")[:2] for line in said] == [
        [str(main), "ttl"],
        [f"{tmp_path}/choria.conf", "discovery_timeout"],
    ]


def test_a_huge_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "c").write_bytes(b"#" * (MAX_BYTES + 1))
    assert faults(tmp_path / "c", tmp_path, tmp_path) == [f"{tmp_path}/c: has over {MAX_BYTES} bytes"]


def test_bytes_that_are_no_utf8_stay_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "c").write_bytes(b"# caf\xe9\nidentity = n1\nplugin.security.file.key = /k\xe9y\n")
    found = load_choria_settings(tmp_path / "c", environ={}, working_directory=tmp_path)
    assert os.fsencode(found.file_key) == b"/k\xe9y"


def test_without_an_identity_the_host_gives_its_own(tmp_path: Path) -> None:
    (tmp_path / "c").write_text("ttl = 45\n")
    found = load_choria_settings(tmp_path / "c", environ={"PATH": "/nowhere"}, working_directory=tmp_path)
    assert found.identity == own_identity({"PATH": "/nowhere"})
    assert found.identity


def test_facter_is_asked_for_the_name(tmp_path: Path) -> None:
    facter = tmp_path / "facter"
    facter.write_text('#!/bin/sh\necho "fqdn-of-$1.example.net"\n')
    facter.chmod(0o755)
    assert _facter("x", {"PATH": str(tmp_path)}) == "fqdn-of-x.example.net"
    facter.write_text("#!/bin/sh\nexit 1\n")
    assert _facter("x", {"PATH": str(tmp_path)}) == ""
    facter.write_text("#!/bin/sh\necho two words\n")
    assert _facter("x", {"PATH": str(tmp_path)}) == ""
    assert _facter("x", {"PATH": "/nowhere"}) == ""
