"""From the operator's files to something that speaks: the wire to use, with the credential to sign with."""

import os
import pwd
from collections.abc import Mapping
from pathlib import Path

from provisioner.choria.security import (
    CertificateSigner,
    SeedSigner,
    caller_of_certname,
    caller_of_token,
    certname,
)
from provisioner.choria.settings import ChoriaSettings
from provisioner.choria.v1 import V1
from provisioner.choria.v2 import V2
from provisioner.choria.wire import Wire
from provisioner.config import Config
from provisioner.errors import ConfigError, Fault
from provisioner.secret import Secret

MAX_FILE = 256 * 1024
"""Bytes of a certificate, key or token file."""


def own_certname(settings: ChoriaSettings, *, insecure: bool, environ: Mapping[str, str] = os.environ) -> str:
    """The name that stands for us where there is no token (wire-protocol 3.5)."""
    try:
        passwd_name = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        passwd_name = ""  # a user id without an entry, as in some containers
    return certname(
        "file" if insecure else settings.security_provider,
        identity=settings.identity,
        override=environ.get("MCOLLECTIVE_CERTNAME", ""),
        euid=os.geteuid(),
        user=environ.get("USER", ""),
        passwd_name=passwd_name,
    )


def wire_for(config: Config, settings: ChoriaSettings) -> Wire:
    """The protocol version that the configured security provider speaks, signing with its key.

    Raises:
        ConfigError: a key, certificate or token can't be used; names the key of choria.cfg.
    """
    name = own_certname(settings, insecure=config.choria_insecure)
    if config.choria_insecure:
        return V1(caller_of_certname(name))
    (public_key, public), (private_key, private), *_ = settings.key_files(name)
    credential, key = read_credential(public_key, public), Secret(read_credential(private_key, private))
    try:
        if settings.version == 2:
            return V2(caller_of_token(credential), SeedSigner(credential, key))
        return V1(caller_of_certname(name), CertificateSigner(credential, key))
    except ValueError as error:
        raise ConfigError([Fault("choria.cfg", f"{public_key}, {private_key}", str(error))]) from None


def read_credential(key: str, path: str) -> str:
    """The text of a certificate, key or token file.

    Args:
        key: the key of choria.cfg that names it.
        path: where it is; ``""`` for one that must still be configured.

    Raises:
        ConfigError: it is not set, can't be read, is too large, or is not text.
    """
    if not path:
        raise ConfigError([Fault("choria.cfg", key, "must be set, or choria_insecure in the provisioner's YAML")])
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_FILE + 1)
        if len(data) > MAX_FILE:
            raise ConfigError([Fault("choria.cfg", key, f"is over {MAX_FILE} bytes", path)])
        return data.decode()
    except OSError as error:
        raise ConfigError([Fault("choria.cfg", key, f"can't be read: {error.strerror}", path)]) from None
    except UnicodeDecodeError:
        raise ConfigError([Fault("choria.cfg", key, "is not text", path)]) from None
