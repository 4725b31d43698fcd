"""The provisioner's YAML as a frozen ``Config``, with every rule of validation (wire-protocol 11.6)."""

from functools import partial
from pathlib import Path

from attrs import field, frozen

from provisioner.secret import Secret


@frozen
class Features:
    """Which steps a cycle has. ``ed25519`` implies ``jwt`` and excludes ``pki``."""

    jwt: bool = False
    pki: bool = False
    ed25519: bool = False
    upgrades: bool = False


@frozen(kw_only=True)
class Config:
    """One provisioner's configuration, validated. Field names are the YAML keys; durations are seconds."""

    path: Path
    workers: int
    interval: float
    interval_text: str
    helper: tuple[str, ...]
    token: Secret
    site: str
    lifecycle_component: str = "provision_mode_server"
    logfile: str = ""
    loglevel: str = "info"
    choria_insecure: bool = False
    monitor_port: int = 0
    broker_provisioning_password: Secret = field(factory=partial(Secret, ""))
    cert_deny_list: tuple[str, ...] = ()
    jwt_verify_cert: str = ""
    jwt_signing_key: Path | None = None
    jwt_signing_token: Path | None = None
    server_jwt_validity: float = 365 * 86400.0
    leader_election: bool = False
    upgrades_repository: str = ""
    upgrades_optional: bool = False
    features: Features = Features()
