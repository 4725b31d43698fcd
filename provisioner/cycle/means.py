"""Loads what every cycle of one configuration needs: keys, patterns, signers. Files are read here, once."""

from collections.abc import Callable
from time import time

from provisioner.config import Config
from provisioner.cycle.steps import Means, RunHelper
from provisioner.helper.recording import Recorder
from provisioner.metrics import Metrics
from provisioner.trust.keys import load_verification_key
from provisioner.trust.request import DenyList
from provisioner.trust.server_token import ServerTokenIssuer, load_server_token_issuer


def load_means(
    config: Config,
    run_helper: RunHelper,
    metrics: Metrics,
    record: Callable[[str, bytes], None] | None = None,
    clock: Callable[[], float] = time,
) -> Means:
    """The means of a configuration.

    Args:
        config: what to do.
        run_helper: runs the site's helper.
        metrics: told of each helper run.
        record: given each helper input, instead of what ``record_inputs`` says.
        clock: unix time in seconds.

    Raises:
        ConfigError: a key file can't be used; the error names file, key and what was found.
    """
    features = config.features
    if record is None and config.record_inputs is not None:
        record = Recorder(config.record_inputs)

    def load_issuer(now: float) -> ServerTokenIssuer:
        assert config.jwt_signing_key is not None
        return load_server_token_issuer(
            config.jwt_signing_key, config.jwt_signing_token, config.server_jwt_validity, now=now
        )

    if features.ed25519:
        load_issuer(clock())  # a mistake is found at start-up, not at the first server
    return Means(
        config=config,
        run_helper=run_helper,
        metrics=metrics,
        verification_key=load_verification_key(config.jwt_verify_cert) if features.jwt else None,
        deny_list=DenyList(config.cert_deny_list, file=str(config.path)) if features.pki else None,
        load_issuer=load_issuer if features.ed25519 else None,
        record=record,
        clock=clock,
    )
