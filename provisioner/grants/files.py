"""Reads the manifest and the secrets as the host laid them, and trusts no path and no mode (mesh.md A5.7, A5.8).

Everything is read before the first statement goes to the server. A file is opened once and never again by name; a
symbolic link counts only while it stays beneath the grants directory, so a host may swap whole directories by a link.
"""

import contextlib
import errno
import hashlib
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from attrs import evolve, field, frozen

from provisioner.errors import GrantError
from provisioner.grants import declaration, manifest, naming
from provisioner.grants.manifest import Consumer, Identity, Manifest, Refused
from provisioner.secret import Secret

MAX_SECRET_BYTES = 64 * 1024

_TRIES = 3
_PAUSE = 0.05
_MAX_LINKS = 40
_MAX_NOTES = 20
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_DIRECTORY = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY

Identification = tuple[int, int, int, int, int]


@frozen
class Delivery:
    """What the host has delivered, whole: the manifest, and the secret of each consumer that it can be served with."""

    manifest: Manifest
    sha256: str
    secrets: dict[Identity, Secret] = field(repr=False)


class _UnusableError(Exception):
    """One secret file can't be used."""


class _ChangedError(Exception):
    """The files were changed while they were read, or looked for."""


def read(path: Path, grants: Path, *, provision: str) -> Delivery:
    """Reads the manifest, then every secret that it asks for, and looks whether it is still the same manifest.

    Args:
        path: the manifest.
        grants: the directory that all secrets must be in.
        provision: the provision that this run serves.

    Raises:
        GrantError: there is nothing here on whose strength anything may be done; the message names the file.
    """
    latest: Delivery | None = None
    changed = ""
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(_PAUSE)
        try:
            latest, missing = _read_once(path, grants, provision)
        except _ChangedError as error:
            latest, changed = None, str(error)
            continue
        if not missing:
            break
    if latest is None:
        raise GrantError(changed)
    return latest


def read_declaration(path: Path, *, provision: str | None) -> declaration.Declaration:
    """Reads a provider module's declaration.

    Raises:
        GrantError: it can't be read, or doesn't say what is needed; the message names the file.
    """
    try:
        data, _ = _read_regular(Path(os.path.realpath(path)), declaration.MAX_BYTES)
        return declaration.parse(data, provision=provision)
    except OSError as error:
        raise GrantError(f"{path} can't be read: {os.strerror(error.errno or 0)}") from None
    except (GrantError, _UnusableError) as error:
        raise GrantError(f"{path} {error}") from None


def _read_once(path: Path, grants: Path, provision: str) -> tuple[Delivery, bool]:
    """One try. Tells too whether a secret was missing, which a swap of directories can cause for a moment."""
    with contextlib.ExitStack() as stack:
        root = _open_directory(grants)
        stack.callback(os.close, root)
        real = _resolved(path, grants)
        try:
            data, identification = _read_regular(real, manifest.MAX_BYTES)
        except OSError as error:
            raise _ChangedError(f"{path} can't be read: {os.strerror(error.errno or 0)}") from None
        except _UnusableError as error:
            raise GrantError(f"{path} {error}") from None
        try:
            found = manifest.parse(data, provision=provision)
        except GrantError as error:
            raise GrantError(f"{path} {error}") from None
        found, secrets, missing = _with_secrets(found, grants, root)
        if not _is_still(path, grants, real, identification):
            raise _ChangedError(f"{path} changes again and again while it is read")
        strays = tuple(_strays(root, found))
    found = evolve(found, notes=(*found.notes, *strays))
    return Delivery(found, hashlib.sha256(data).hexdigest(), secrets), missing


def _is_still(path: Path, grants: Path, real: Path, identification: Identification) -> bool:
    try:
        return _identification(real.lstat()) == identification and _resolved(path, grants) == real
    except (OSError, GrantError, _ChangedError):
        return False


def _with_secrets(found: Manifest, grants: Path, root: int) -> tuple[Manifest, dict[Identity, Secret], bool]:
    """Reads each secret; a consumer without a usable one is refused, and so keeps what it has."""
    secrets: dict[Identity, Secret] = {}
    served: list[Consumer] = []
    refused: list[Refused] = list(found.refused)
    missing = False
    for consumer in found.consumers:
        try:
            secrets[consumer.identity] = _secret(consumer, grants, root)
            served.append(consumer)
        except OSError as error:
            missing = missing or error.errno == errno.ENOENT
            what = (
                f"secret file {naming.secret_file(*consumer.identity)} can't be read: {os.strerror(error.errno or 0)}"
            )
            refused.append(Refused(consumer.node, consumer.module, what))
        except _UnusableError as error:
            refused.append(Refused(consumer.node, consumer.module, f"secret file {error}"))
    refused.sort(key=lambda each: each.identity)
    return evolve(found, consumers=tuple(served), refused=tuple(refused)), secrets, missing


def _secret(consumer: Consumer, grants: Path, root: int) -> Secret:
    expected = naming.secret_file(*consumer.identity)
    relative = PurePosixPath(expected)
    if consumer.secret is not None:
        relative = _beneath(consumer.secret, grants)
        if relative.name != expected:
            raise _UnusableError(f"must be called {expected} (the manifest says {relative.name!r})")
    descriptor = _open_beneath(root, relative)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _UnusableError("is not a regular file")
        if status.st_mode & 0o027:
            raise _UnusableError(f"has mode {stat.S_IMODE(status.st_mode):04o}: must be 0600 or 0640")
        if status.st_uid not in {0, os.geteuid()}:
            raise _UnusableError(f"belongs to user {status.st_uid}: must be root's or ours")
        return decode_secret(_read_all(descriptor, MAX_SECRET_BYTES))
    finally:
        os.close(descriptor)


def decode_secret(data: bytes) -> Secret:
    """A secret file's bytes as a password: UTF-8, less one final newline. Spaces and quotes are part of it."""
    for end in (b"\r\n", b"\n"):
        if data.endswith(end):
            data = data[: -len(end)]
            break
    if not data:
        raise _UnusableError("is empty")
    if b"\0" in data or b"\n" in data or b"\r" in data:
        raise _UnusableError("holds more than one line, or a NUL")
    try:
        return Secret(data.decode())
    except UnicodeDecodeError:
        raise _UnusableError("is not UTF-8") from None


def _beneath(text: str, grants: Path) -> PurePosixPath:
    """A secret's path of the manifest, as a path from the grants directory on."""
    path = PurePosixPath(text)
    if not path.is_absolute():
        return path
    for base in (grants, Path(os.path.realpath(grants))):
        with contextlib.suppress(ValueError):
            return path.relative_to(base)
    raise _UnusableError(f"{text} is outside of the grants directory {grants}")


def _open_beneath(root: int, path: PurePosixPath) -> int:
    """Opens a file below a directory, following links by hand so that none leads out of it.

    Linux's openat2 with RESOLVE_BENEATH does this in one call, but Python doesn't offer it.
    """
    todo = list(reversed(path.parts))
    opened = [os.dup(root)]
    links = 0
    try:
        while todo:
            part = todo.pop()
            if part == "..":
                if len(opened) == 1:
                    raise _UnusableError("leads out of the grants directory")
                os.close(opened.pop())
                continue
            status = os.stat(part, dir_fd=opened[-1], follow_symlinks=False)
            if stat.S_ISLNK(status.st_mode):
                links += 1
                target = PurePosixPath(os.readlink(part, dir_fd=opened[-1]))
                if target.is_absolute():
                    raise _UnusableError("is a link that leads out of the grants directory")
                if links > _MAX_LINKS:
                    raise _UnusableError("is a link to a link, and so on without end")
                todo += reversed(target.parts)
            elif todo:
                opened.append(os.open(part, _DIRECTORY | os.O_NOFOLLOW, dir_fd=opened[-1]))
            else:
                return os.open(part, _READ, dir_fd=opened[-1])
        raise _UnusableError("is a directory")
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _resolved(path: Path, grants: Path) -> Path:
    """Where the manifest really is; if it was said to be in the grants directory, it must be."""
    real = Path(os.path.realpath(path))
    if path.is_relative_to(grants) and not real.is_relative_to(os.path.realpath(grants)):
        raise GrantError(f"{path} is a link that leads out of the grants directory {grants}")
    _check_directories(real.parent)
    return real


def _open_directory(grants: Path) -> int:
    _check_directories(Path(os.path.realpath(grants)))
    try:
        return os.open(grants, _DIRECTORY)
    except OSError as error:
        raise _ChangedError(f"the grants directory {grants} can't be read: {os.strerror(error.errno or 0)}") from None


def _check_directories(directory: Path) -> None:
    """Nobody else may be able to put another file in the place of ours, anywhere on the way to it."""
    for each in (directory, *directory.parents):
        try:
            mode = each.stat().st_mode
        except OSError as error:
            raise _ChangedError(f"the directory {each} can't be read: {os.strerror(error.errno or 0)}") from None
        if mode & 0o022 and not mode & stat.S_ISVTX:
            raise GrantError(f"the directory {each} has mode {stat.S_IMODE(mode):04o}: others may change what is in it")


def _read_regular(path: Path, limit: int) -> tuple[bytes, Identification]:
    descriptor = os.open(path, _READ)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _UnusableError("is not a regular file")
        if status.st_mode & 0o022:
            raise _UnusableError(f"has mode {stat.S_IMODE(status.st_mode):04o}: others may write to it")
        return _read_all(descriptor, limit), _identification(status)
    finally:
        os.close(descriptor)


def _read_all(descriptor: int, limit: int) -> bytes:
    found = bytearray()
    while part := os.read(descriptor, min(1 << 20, limit + 1 - len(found))):
        found += part
        if len(found) > limit:
            raise _UnusableError(f"is longer than {limit} bytes")
    return bytes(found)


def _identification(status: os.stat_result) -> Identification:
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size


def _strays(root: int, found: Manifest) -> Iterator[str]:
    """Secrets that no consumer of the manifest has: told, and left to the host, which laid them."""
    wanted = {naming.secret_file(*identity) for identity in found.asked}
    strays = sorted(each for each in os.listdir(root) if each.endswith(".secret") and each not in wanted)
    yield from (f"{each} is named by no consumer" for each in strays[:_MAX_NOTES])
    if len(strays) > _MAX_NOTES:
        yield f"{len(strays) - _MAX_NOTES} more secret files are named by no consumer"


def signature(path: Path, grants: Path) -> tuple[object, ...]:
    """What changes whenever the manifest or a secret is changed, in place or by a swap of files or directories.

    It follows links, so it sees through them; the time of the last change of an inode tells what size and time of
    modification can hide.
    """

    def look(file: str | Path) -> object:
        try:
            return _identification(Path(file).stat())
        except OSError as error:
            return error.errno

    try:
        with os.scandir(grants) as entries:
            secrets = sorted((each.name, look(each.path)) for each in entries if each.name.endswith(".secret"))
    except OSError as error:
        return look(path), error.errno
    return look(path), tuple(secrets)
