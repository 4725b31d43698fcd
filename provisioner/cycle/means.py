"""Loads what every cycle of one configuration needs: keys, patterns, signers. Files are read here, once."""

from collections.abc import Callable

from provisioner.config import Config
from provisioner.cycle.steps import Means, RunHelper
from provisioner.metrics import Metrics
from provisioner.trust.request import DenyList
from provisioner.trust.server_token import ServerTokenIssuer
from provisioner.trust.tokens import load_verification_key


def load_means(
    config: Config, run_helper: RunHelper, metrics: Metrics, record: Callable[[str, bytes], None] | None = None
) -> Means:
    """The means of a configuration.

    Raises:
        ConfigError: a key file can't be used; the error names file, key and what was found.
    """
    features = config.features
    return Means(
        config=config,
        run_helper=run_helper,
        metrics=metrics,
        verification_key=load_verification_key(config.jwt_verify_cert) if features.jwt else None,
        deny_list=DenyList(config.cert_deny_list) if features.pki else None,
        issuer=ServerTokenIssuer.from_config(config) if features.ed25519 else None,
        record=record,
    )
