"""Finds and reads choria.cfg and what overrides it, and this host's own name (wire-protocol 11.1, 11.2, 11.4)."""

import ipaddress
import os
import shutil
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path, PurePath

from attrs import evolve

from provisioner.choria.settings import ChoriaSettings, default_locations, load_order, read_settings
from provisioner.errors import ConfigError, Fault

MAX_BYTES = 1024 * 1024
FACTER_SECONDS = 10.0
"""Ruby starts slowly; a facter that hangs must not keep the daemon from starting."""


def load_choria_settings(
    path: Path | None,
    *,
    environ: Mapping[str, str] = os.environ,
    working_directory: Path | None = None,
) -> ChoriaSettings:
    """The Choria client settings, from every file that counts.

    Args:
        path: the file that ``--choria-config`` names; None for the first of the usual places.
        environ: the environment, for ``HOME`` and the overrides of wire-protocol 11.3.
        working_directory: where the search for project files ends; None for the current one.

    Raises:
        ConfigError: no file is there, one can't be read, or its values can't be used.
    """
    home = environ.get("HOME", "")
    main = Path(path).absolute() if path is not None else _usual_place(home)
    order = load_order(main, home=home, working_directory=working_directory or Path.cwd())
    files: list[tuple[PurePath, str]] = []
    faults: list[Fault] = []
    for each in order:
        try:
            with Path(each).open("rb") as file:
                data = file.read(MAX_BYTES + 1)
        except (FileNotFoundError, NotADirectoryError):
            if each is main:
                faults.append(Fault(str(main), "", "there is no such file"))
        except OSError as error:
            faults.append(Fault(str(each), "", f"can't be read: {error.strerror}"))
        else:
            if len(data) > MAX_BYTES:
                faults.append(Fault(str(each), "", f"has over {MAX_BYTES} bytes"))
            # File names may be any bytes: surrogateescape gives them back as they are.
            files.append((each, data.decode(errors="surrogateescape")))
    if faults:
        raise ConfigError(faults)
    settings = read_settings(files, environ=environ, default_identity="")
    return settings if settings.identity else evolve(settings, identity=own_identity(environ))


def _usual_place(home: str) -> Path:
    places = [Path(place) for place in default_locations(home)]
    for place in places:
        if place.is_file():
            return place
    looked = ", ".join(map(str, places))
    raise ConfigError([Fault("--choria-config", "", f"name a Choria client configuration; there is none of {looked}")])


def own_identity(environ: Mapping[str, str] = os.environ) -> str:
    """This host's name as the reference derives it: a host name with two dots, reverse DNS, facter, the host name.

    May take seconds where a name service doesn't answer.
    """
    name = socket.gethostname()
    if name.count(".") >= 2:
        return name
    return _reverse_name() or _facter("networking.fqdn", environ) or name


def _reverse_name() -> str:
    try:
        # Connecting a datagram socket sends nothing; it asks which address would be used.
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("192.0.2.1", 9))
            address = probe.getsockname()[0]
        if ipaddress.ip_address(address).is_loopback:
            return ""
        found = socket.gethostbyaddr(address)[0].rstrip(".")
    except OSError:
        return ""
    return "" if found.partition(".")[0] == "localhost" else found


def _facter(fact: str, environ: Mapping[str, str]) -> str:
    program = shutil.which("facter", path=environ.get("PATH"))
    if program is None:
        return ""
    try:
        run = subprocess.run(
            [program, fact], stdin=subprocess.DEVNULL, capture_output=True, timeout=FACTER_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    found = run.stdout[:255].decode(errors="replace").strip()
    return found if found.isprintable() and " " not in found else ""
