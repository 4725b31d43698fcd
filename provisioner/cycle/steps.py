"""One server, from the first call to the restart. Reads as the list of steps (wire-protocol A.1).

Everything that can be decided without the server is decided before it is written to: claims, sealing, names and limits.
A step that fails raises; nothing after it is done.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from time import time
from typing import Any, Protocol

from attrs import field, frozen

from provisioner.config import Config
from provisioner.cycle import calls
from provisioner.cycle.delivery import configure_data
from provisioner.cycle.facts import Facts
from provisioner.cycle.outcome import Outcome
from provisioner.cycle.version import same_version
from provisioner.errors import BadReply, Locked, NoReply, RemoteRefusal, TrustError, UpgradeFailed
from provisioner.helper.contract import HelperReply, decode_reply, encode_input
from provisioner.helper.process import HelperRun
from provisioner.metrics import Metrics
from provisioner.rpc import Conversation
from provisioner.secret import Secret
from provisioner.trust.challenge import fresh_nonce, verify_challenge
from provisioner.trust.keys import VerificationKey
from provisioner.trust.request import DenyList, verify_request
from provisioner.trust.sealing import seal_private_key
from provisioner.trust.server_token import Issued, ServerTokenIssuer
from provisioner.trust.tokens import verify_provisioning_token

log = logging.getLogger(__name__)


class RunHelper(Protocol):
    """Runs the site's helper once: bytes in, bytes out, ten seconds hard. Raises ``HelperError``."""

    def __call__(self, argv: Sequence[str], payload: bytes, *, identity: str) -> Awaitable[HelperRun]:
        """See ``helper.process.run_helper``."""
        ...


@frozen(kw_only=True)
class Means:
    """What every cycle of one configuration works with.

    Attributes:
        config: the provisioner's configuration.
        run_helper: runs the site's helper.
        verification_key: verifies provisioning tokens; needed with ``features.jwt``.
        deny_list: names no certificate is asked for; needed with ``features.pki``.
        load_issuer: reads the files that server tokens are signed with, anew for each server, so that a renewed key
            or token counts at once; needed with ``features.ed25519``.
        metrics: told of each helper run.
        record: given each helper input before the helper runs, for ``record_inputs``.
        clock: unix time in seconds.
    """

    config: Config
    run_helper: RunHelper
    metrics: Metrics
    verification_key: VerificationKey | None = None
    deny_list: DenyList | None = None
    load_issuer: Callable[[float], ServerTokenIssuer] | None = None
    record: Callable[[str, bytes], None] | None = None
    clock: Callable[[], float] = time


@frozen
class Delivered:
    """What a server was given, for the audit trail. Nothing in it is secret.

    Attributes:
        data: the ``configure`` call's data (kept only until the cycle's end; never logged).
        issued: the server token's facts.
    """

    data: Mapping[str, Any] = field(repr=False)
    issued: Issued | None = None


class Cycle:
    """One server's cycle.

    Args:
        means: what it works with.
        talk: the conversation with the server.
        check: raises when this instance may no longer act; asked before the helper is started.
        on_step: told the name of each step as it begins.
        attempt: how often this server has been tried since it last succeeded, from 1.
        upgrade_allowed: given the server's version before an upgrade; raises ``UpgradeLoop``.
    """

    def __init__(
        self,
        means: Means,
        talk: Conversation,
        *,
        check: Callable[[], None],
        on_step: Callable[[str], None] = lambda step: None,
        attempt: int = 1,
        upgrade_allowed: Callable[[str], None] = lambda version: None,
    ) -> None:
        self.means = means
        self.facts = Facts(talk.identity)
        self.step = ""
        self.helper_seconds: float | None = None
        self.delivered: Delivered | None = None
        self._talk = talk
        self._check = check
        self._on_step = on_step
        self._attempt = attempt
        self._upgrade_allowed = upgrade_allowed

    async def run(self) -> Outcome:
        """All of it.

        Raises:
            ProvisionerError: the step that failed; ``self.step`` names it.
        """
        features = self.means.config.features
        if features.jwt:
            await self.fetch_jwt()
        if features.ed25519:
            await self.fetch_ed25519_public_key()
        await self.fetch_inventory()
        if features.pki:
            await self.fetch_csr()
        reply = await self.ask_helper()
        if reply.defer:
            return Outcome("deferred", reply.msg, rest=reply.defer_for or None, reason=reply.reason)
        if reply.shutdown:
            return await self.shut_down(reply)
        if features.upgrades and reply.upgrade and await self.upgrade(reply.upgrade):
            return Outcome("upgrading", f"from {self.facts.version} to {reply.upgrade}", reason=reply.reason)
        self.delivered = self.prepare(reply)
        await self.configure(self.delivered.data)
        await self.restart()
        return Outcome("provisioned", reply.msg, reason=reply.reason)

    def _begin(self, step: str) -> None:
        self.step = step
        self._on_step(step)
        log.info("%s: %s", self.facts.identity, step, extra={"identity": self.facts.identity})

    @property
    def _token(self) -> str:
        return self.means.config.token.reveal()

    async def fetch_jwt(self) -> None:
        """The server's provisioning token, verified, and its key for sealing."""
        self._begin("Fetching JWT")
        answer = await self._talk.call(calls.JWT, lambda: {"token": self._token}, lambda found: found)
        if self.means.verification_key is None:
            raise TrustError("jwt_bad_signature", "no jwt_verify_cert is configured: nothing can be verified")
        self.facts.claims = verify_provisioning_token(
            answer["jwt"], self.means.verification_key, now=self.means.clock()
        )
        self.facts.ecdh_public = answer["ecdh_public"]

    async def fetch_ed25519_public_key(self) -> None:
        """A key of the server's own making, and proof that it holds it: a fresh nonce for each try."""
        self._begin("Fetching ED25519 public key")
        nonce = ""

        def ask() -> dict[str, str]:
            nonlocal nonce
            nonce = fresh_nonce()
            return {"nonce": nonce, "token": self._token}

        def accept(answer: dict[str, Any]) -> dict[str, str]:
            public_key = verify_challenge(answer["public_key"], answer["signature"], nonce)
            return {"public_key": public_key, "directory": answer["directory"], "signature": answer["signature"]}

        self.facts.ed25519 = await self._talk.call(calls.GEN25519, ask, accept)

    async def fetch_inventory(self) -> None:
        """What the server says about itself: facts, agents, version."""
        self._begin("Fetching Inventory")
        self.facts.inventory = await self._talk.call(calls.INVENTORY, dict, lambda found: found)

    async def fetch_csr(self) -> None:
        """A certificate request of the server's, for exactly its own name."""
        self._begin("Fetching CSR")
        identity = self.facts.identity
        answer = await self._talk.call(
            calls.GENCSR, lambda: {"cn": identity, "token": self._token}, lambda found: found
        )
        assert self.means.deny_list is not None
        verify_request(
            answer["csr"],
            identity,
            self.means.deny_list,
            public_key=answer["public_key"],
            allowed_extensions=self.means.config.cert_allow_extensions,
        )
        self.facts.csr = {key: answer[key] for key in ("csr", "public_key", "ssldir")}

    async def ask_helper(self) -> HelperReply:
        """The site's decision."""
        self._begin("Asking the helper")
        facts, config = self.facts, self.means.config
        extra = {"attempt": self._attempt, "site": config.site} if config.helper_input_extra else None
        payload = encode_input(
            identity=facts.identity,
            csr=facts.csr,
            ed25519_pubkey=facts.ed25519,
            inventory=facts.inventory_text,
            jwt=facts.claims,
            extra=extra,
        )
        if self.means.record is not None:
            self.means.record(facts.identity, payload)
        self._check()
        with self.means.metrics.helper_time():
            run = await self.means.run_helper(config.helper, payload, identity=facts.identity)
        self.helper_seconds = run.seconds
        reply = decode_reply(run.stdout)
        if reply.msg:
            log.info("%s: the helper says: %s", facts.identity, reply.msg, extra={"identity": facts.identity})
        return reply

    async def shut_down(self, reply: HelperReply) -> Outcome:
        """Stops the server, as the helper asked."""
        self._begin("Shutting down node")
        await self._talk.call(calls.SHUTDOWN, lambda: {"token": self._token}, lambda found: found)
        return Outcome("shut_down", reply.msg, reason=reply.reason)

    async def upgrade(self, wanted: str) -> bool:
        """Starts an upgrade, or a downgrade, where the versions differ.

        Returns:
            Whether one was started; then the server restarts by itself and nothing else is sent.

        Raises:
            UpgradeFailed: it is mandatory and can't be started.
            UpgradeLoop: this server was upgraded again and again to no effect.
        """
        config, facts = self.means.config, self.facts
        if same_version(facts.version, wanted):
            return False
        self._upgrade_allowed(facts.version)
        self._begin("Upgrading node")
        try:
            await self._start_upgrade(wanted)
        except Locked:
            raise
        except (UpgradeFailed, RemoteRefusal, NoReply, BadReply) as error:
            if not config.upgrades_optional:
                raise UpgradeFailed(str(error)) from error
            log.warning(
                "%s: going on without the optional upgrade to %s: %s", facts.identity, wanted, error,
                extra={"identity": facts.identity},
            )  # fmt: skip
            return False
        return True

    async def _start_upgrade(self, wanted: str) -> None:
        config = self.means.config
        if not config.upgrades_repository:
            raise UpgradeFailed("no upgrades_repository is configured")
        if not (self.facts.inventory or {})["upgradable"]:
            raise UpgradeFailed("the server says that it is not upgradable")
        data = {"repository": config.upgrades_repository, "token": self._token, "version": wanted}
        await self._talk.call(calls.RELEASE_UPDATE, lambda: data, lambda found: found)

    def prepare(self, reply: HelperReply) -> Delivered:
        """All that ``configure`` will carry, complete and checked."""
        facts, issued, key, ecdh_public = self.facts, None, "", ""
        if self.means.config.features.ed25519:
            assert self.means.load_issuer is not None
            assert facts.ed25519 is not None
            now = self.means.clock()
            issued = self.means.load_issuer(now).issue(
                facts.identity, facts.ed25519["public_key"], reply.configuration, reply.server_claims, now=now
            )
        if reply.key:
            sealed = seal_private_key(reply.key, facts.ecdh_public)
            key, ecdh_public = sealed.key, sealed.ecdh_public
        token = issued.token if issued else Secret("")
        data = configure_data(
            facts, reply, token=self.means.config.token, server_jwt=token, key=key, ecdh_public=ecdh_public
        )
        return Delivered(data, issued)

    async def configure(self, data: Mapping[str, Any]) -> None:
        """Writes the configuration, credentials and policies, in one call."""
        self._begin("Configuring node")
        await self._talk.call(calls.CONFIGURE, lambda: data, lambda found: found)

    async def restart(self) -> None:
        """Restarts the server into its configuration."""
        self._begin("Restarting node")
        await self._talk.call(calls.RESTART, lambda: {"splay": 1, "token": self._token}, lambda found: found)
