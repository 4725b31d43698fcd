"""Names of policy files from the helper: a server joins them to a directory without looking (wire-protocol 14.33)."""

from collections.abc import Mapping

from provisioner.choria.encoding import shown
from provisioner.errors import BadConfiguration

MAX_NAME = 255
"""Bytes of a file name on every file system that matters."""


def check_policies(action_policies: Mapping[str, str], opa_policies: Mapping[str, str]) -> None:
    """Checks that each policy is a plain file name with the extension its agent wants.

    Args:
        action_policies: file name, ending in ``.policy``, to content.
        opa_policies: file name, ending in ``.rego``, to content.

    Raises:
        BadConfiguration: naming the kind and the file.
    """
    for kind, extension, policies in (
        ("action_policies", ".policy", action_policies),
        ("opa_policies", ".rego", opa_policies),
    ):
        for name in policies:
            problem = _problem(name, extension)
            if problem:
                raise BadConfiguration(f"{kind}: the file name {shown(name)} {problem}")


def _problem(name: str, extension: str) -> str | None:
    if not name.endswith(extension) or name == extension:
        return f"must end in {extension}, with something before it"
    if "/" in name or "\\" in name or name.startswith("."):
        return "must be a plain name, without a directory or a leading dot"
    if not name.isprintable() or len(name.encode(errors="replace")) > MAX_NAME:
        return f"must be printable and at most {MAX_NAME} bytes long"
    return None
