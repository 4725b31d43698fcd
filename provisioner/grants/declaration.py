"""What a provider module declares: which provisions it has, and where the host lays their files (mesh.md A2)."""

from pathlib import Path
from typing import Any

from attrs import frozen

from provisioner import strictjson
from provisioner.errors import GrantError

MAX_BYTES = 1024 * 1024


@frozen
class Declaration:
    """One provision's share of a declaration: its name, its manifest's path, its grants directory."""

    provision: str
    manifest: Path
    grants: Path


def parse(data: bytes, *, provision: str | None) -> Declaration:
    """Reads the three keys of the contract from a provider module's file; its other keys are not ours.

    Args:
        data: the file's bytes, JSON.
        provision: the provision to serve; None when the module must have just one.

    Raises:
        GrantError: the file doesn't declare that provision, or not where its files are.
    """
    if len(data) > MAX_BYTES:
        raise GrantError(f"is longer than {MAX_BYTES} bytes")
    try:
        top = strictjson.loads(data, unique_keys=True)
    except strictjson.NotJSON as error:
        raise GrantError(f"is not JSON: {error}") from None
    if not isinstance(top, dict):
        raise GrantError("must be an object with the keys provides, receives and grants")
    names = _provided(top.get("provides"))
    if provision is None:
        if len(names) != 1:
            raise GrantError(f"provides {', '.join(names) or 'nothing'}: say which with --provision")
        provision = names[0]
    if provision not in names:
        raise GrantError(f"doesn't provide {provision}; it provides {', '.join(names) or 'nothing'}")
    return Declaration(provision, _path(top, "receives", provision), _path(top, "grants", provision))


def _provided(value: Any) -> list[str]:
    if not isinstance(value, list):
        raise GrantError("provides must be a list of objects with a name")
    names: list[str] = []
    for each in value:
        match each:
            case {"name": str(name)} if name:
                names.append(name)
            case _:
                raise GrantError("provides must be a list of objects with a name")
    return names


def _path(top: dict[str, Any], key: str, provision: str) -> Path:
    match top.get(key):
        case {**paths} if isinstance(path := paths.get(provision), str) and path.startswith("/") and "\0" not in path:
            return Path(path)
    raise GrantError(f"{key}.{provision} must be an absolute path")
