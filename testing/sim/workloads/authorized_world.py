"""Seeds of a cluster that enforces authorization, with adversaries (T1 to T4).

Cluster, workload and faults are those of `seed.py`, and machines have certificates. While logs are written,
an admin grants and revokes rights, rotates secrets, disables a user, and issues and revokes tokens. In a
quarter of the seeds the admin also changes the mode from open to required and back. Clocks jump by an hour,
and a bookie may lose contact to the quorum alone. Several clients try forbidden operations:

- The ex-writer keeps all capabilities it ever received, and has the list of entries that each bookie lacks.
- The guest authenticates with tokens, and presents ended ones.
- The intruder has no rights, but has all IDs, request numbers, leases and other users' capabilities.
- The thief has a bookie's certificate, and the keys of another bookie.
- In some seeds there are also a greedy user and unauthenticated peers (`overload.py`).

In a quarter of the seeds there is a read proxy, to which the guest presents its tokens, too.

The attempts do no damage if they are rejected, or if the mode does not enforce authorization. The checks are:

- `testing/verify/checks/independent_authorizer.py`: commands in the metadata log, by a separate
  implementation of the rules.
- `disclosure_oracle.py`: data that the metadata service shows to clients.
- `bookie_effect_oracle.py`: effects of bookies for clients.
- `proxy_rights_oracle.py`: effects of proxies for clients with tokens.
- `token_expiry.py`: the end of proofs that expire.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any, ClassVar

import trio

from ....bookie.client.bookie_client import BookieClient
from ....bookie.format import entry as entries
from ....bookie.session import bookie_authorizer as gate_part
from ....bookie.session.bookie_authorizer import BookieAuthorizer
from ....cluster.auth import authorizer_feed as gate_keeping
from ....cluster.repair.pull_replication import ReplicaMove
from ....ledger.model import ledger_keys as keys
from ....log.format.record import LogRecord
from ....log.model.log_keys import app_version_key, state_key
from ....log.namespace import Namespace
from ....metadata.auth import principal_quotas as quotas
from ....metadata.auth import token_service as token_desk
from ....metadata.auth.token_service import TokenService
from ....metadata.client.metadata_client import MetadataClient
from ....metadata.model.commands import Transact, encode_command
from ....metadata.model.interface import prefix_end
from ....metadata.model.transaction import Compare, Put, Transaction
from ....metadata.node.watch_server import ServedWatches
from ....metadata.protocol.client_messages import RangeRequest
from ....metadata.protocol.token_messages import RotateRequest, TokenRequest
from ....metadata.state import kv_state
from ....metadata.storage.backup_format import BackupRequest
from ....proxy.session.client_authorizer import ClientAuthorizer
from ....runtime.interfaces.errors import (
    DistributedLogError,
    InvalidRequest,
    LogExists,
    NotAllowed,
    OverQuota,
)
from ....runtime.interfaces.host import Address, Host
from ....runtime.interfaces.principals import Credentials
from ....runtime.net.client_link import ClientLink, Reply
from ....runtime.net.link import Link
from ....runtime.net.rpc import Endpoint
from ....runtime.net.tls import token_credentials
from ....runtime.protocol.capabilities import (
    CAPABILITY_BYTES,
    CapabilityKind,
    issue_session_credential,
    make_capability,
)
from ....runtime.protocol.capability_messages import (
    BookieKeysReply,
    BookieKeysRequest,
    CapabilityReply,
    CapabilityRequest,
)
from ....runtime.protocol.frames import Op, pack
from ....runtime.protocol.handshake import Hello
from ....runtime.protocol.tokens import READ
from ...verify.checks.history_check import Violation
from ...verify.checks.independent_authorizer import IndependentAuthorizer
from ...verify.workloads import workload
from ..faults.overload import (
    CONNECTIONS_MAX,
    FRESH_S,
    LEASES_MAX,
    REQUESTS_KEPT,
    WATCHES_MAX,
    Greedy,
    QuotaOracle,
    flood,
)
from ..oracles.bookie_effect_oracle import CHECK_INTERVAL_S, BookieEffectOracle
from ..oracles.connection_observer import BY_PASS, ConnectionObserver
from ..oracles.disclosure_oracle import DisclosureOracle
from ..oracles.proxy_rights_oracle import ProxyRightsOracle, read_by_tokens
from ..oracles.token_expiry import TokenExpiryOracle
from ..world.bug_injection import Patch, patched
from ..world.machine_state import machine_of_task
from ..world.scheduler import Simulation
from ..world.sim_cluster import PATH, SimCluster
from .seed import CHAOS_S, FORMING_S, LOGS, LogRun

ADMIN, EX, EVE, THIEF, GUEST, STRANGER, GREEDY = "x1", "x2", "x3", "x4", "x5", "x6", "x7"
CERTIFICATES = {
    "c1": "user/app",
    "c2": "user/app",
    "c3": "user/reader",
    "c4": "user/root",
    "c5": "user/root",
    ADMIN: "user/root",
    EX: "user/ex",
    EVE: "user/eve",
    THIEF: "bookie/b9",
    GREEDY: "user/greedy",
}
"""Certificates by machine. The guest has tokens instead, and the stranger no credentials."""
GUEST_NAME = "user/guest"
WATCHED = {GUEST_NAME, *(CERTIFICATES[name] for name in (EX, EVE, THIEF, GREEDY))}
"""Principals whose requests may be rejected."""
PLANS = ("required", "required", "round", "report")
"""The mode after the first client has started. ``round`` cycles through open, report and required."""
ROUND = ("report", "required", "report", "open")
ACT_S = 1.5
"""Mean pause in seconds between two actions of the admin."""
AGAIN_S = 0.3
ASK_S = 1.0
LOOT_MAX = 100
"""How many of the oldest and of the newest capabilities a client keeps."""
DEAF_S = 90.0
"""Seconds after the heal within which every bookie receives a revocation. Bookies poll once per minute."""
NEVER = 1 << 62
DAY_S = 86_400.0
SILENCE_S = 4.0
"""How long bookies serve users without contact to the quorum, in half of the seeds."""
HOUR_MS = 3_600_000
TOLERANCE_S = 2
"""Tolerance for the end of tokens. The one of production is longer than a seed."""
TOKEN_S_MAX = 8
PROXY_CHANCE = 0.25
OWN_LOG = "scratch"
"""A log that the ex-writer writes normally."""


@dataclass(frozen=True, slots=True)
class StolenCapability:
    """A capability that a client received earlier, or forged."""

    bookie: str
    ledger: int
    kind: CapabilityKind
    key: bytes
    planted_entry: int = 0
    """The entry that the client tries to plant with it."""


class AuthorizedRun(LogRun):
    """One seed of a cluster with authorization."""

    finalizes: ClassVar[bool] = False

    def __init__(
        self,
        seed: int,
        *,
        chaos_s: float = CHAOS_S,
        keep_trace: bool = False,
        only_adversaries: Sequence[str] | None = None,
        with_proxy: bool = False,
    ) -> None:
        """Prepare a seed.

        Args:
            only_adversaries: Run without random faults, with only these adversaries (`writer_progress.py`).
            with_proxy: Add a read proxy, independent of the seed.
        """
        super().__init__(seed, chaos_s=chaos_s, keep_trace=keep_trace)
        simulation, rng = self.simulation, self.simulation.random_stream("trust")
        self.plan = rng.choice(PLANS)
        is_drawn = simulation.random_stream("at proxies").random() < PROXY_CHANCE
        has_proxy = only_adversaries is None and (is_drawn or with_proxy)
        self.shape = replace(
            self.shape, others=7, certificates=CERTIFICATES, read_proxies=int(has_proxy)
        )
        self.silence_s = rng.choice((SILENCE_S, DAY_S))
        self.adversaries = [EX, EVE, THIEF, GUEST]
        self.adversaries += [name for name in (STRANGER, GREEDY) if rng.random() < 0.25]
        if only_adversaries is not None:
            self.is_calm, self.plan, self.silence_s = True, "required", DAY_S
            self.adversaries = list(only_adversaries)
        self._make_oracles()
        self.denied_attempts = 0
        """Number of rejected attempts of the adversaries."""
        self._rng = rng
        self._set_up_done = trio.Event()
        self._stolen_by_ex_writer: list[StolenCapability] = []
        self._tokens: list[bytes] = []
        """All tokens of the guest so far, newest last."""
        self._session_credentials: list[bytes] = []
        self._stolen_by_guest: list[StolenCapability] = []
        self._stolen_keys: BookieKeysReply | None = None
        """The keys with which the first bookie verifies capabilities."""
        self._is_ex_writer_revoked = False
        """Whether the ex-writer's rights were revoked, and not granted again since."""
        self._granted_at_revision = 0
        """The revision of the last grant to the ex-writer."""
        self._revocation_near_until = 0.0
        """Until this time, the ex-writer sends many changes, because its rights are revoked about now."""

    def _make_oracles(self) -> None:
        simulation = self.simulation
        self.independent_authorizer = IndependentAuthorizer(
            self._fail, stolen_bookies={CERTIFICATES[THIEF]}
        )
        self.connection_observer = ConnectionObserver(
            lambda: simulation.now, lambda: self.independent_authorizer.revision
        )
        self.disclosure_oracle = DisclosureOracle(self.independent_authorizer, self._fail)
        self.bookie_effects = BookieEffectOracle(
            lambda: simulation.now,
            self.independent_authorizer,
            self.disclosure_oracle,
            self._fail_at_bookie,
            watched_machines=("c1", "c2", "c3", EX, EVE, THIEF, GUEST, GREEDY),
            thief_machines=(THIEF,),
            silence_s=self.silence_s,
            stalled_until=self._stalled_until,
        )
        self.token_ends = TokenExpiryOracle(
            lambda: simulation.now,
            self.independent_authorizer,
            self._fail,
            tolerance_s=TOLERANCE_S,
            stalled_until=self._stalled_until,
        )
        self.proxy_rights = ProxyRightsOracle(
            lambda: simulation.now,
            self.independent_authorizer,
            self._fail,
            stalled_until=self._stalled_until,
        )
        self.shares = QuotaOracle(
            lambda: simulation.now,
            self.independent_authorizer,
            self._fail,
            greedy_user=CERTIFICATES[GREEDY],
        )
        # `token_ends` computes the end of each token before `proxy_rights` uses it.
        self.connection_observer.listeners += [
            self.disclosure_oracle,
            self.bookie_effects,
            self.token_ends,
            self.proxy_rights,
        ]

    def _stalled_until(self, node: str) -> float:
        return self.cluster.machines[node].stalled_until

    def _fail(self, what: str) -> None:
        self.simulation.fail(Violation(what))

    def _fail_at_bookie(self, what: str) -> None:
        self._fail(f"T3: {what}")

    async def _main(self, simulation: Simulation) -> None:
        with patched(self._observation_patches()):
            await super()._main(simulation)

    def _on_cluster(self, cluster: SimCluster) -> None:
        cluster.network.taps.append(self.connection_observer)
        cluster.oracles.on_applied += [
            self.independent_authorizer.on_applied,
            self.shares.on_applied,
        ]
        for name in cluster.nodes:
            cluster.machines[name].connections_max = CONNECTIONS_MAX

    def _observation_patches(self) -> Sequence[Patch]:
        """Return patches that observe the product from inside, and smaller limits that a run reaches."""
        begin, apply_reply, make = (
            BookieAuthorizer.__init__,
            BookieAuthorizer.apply_reply,
            TokenService.__init__,
        )
        answer, end = Link.reply_error, ServedWatches.end
        know, listen = ClientAuthorizer.__init__, ClientAuthorizer._apply_changes

        def begun(gate: BookieAuthorizer, silence_s: float, time_s: Callable[[], float]) -> None:
            begin(gate, self.silence_s, time_s)
            # Recorded first, because `apply_reply` does not record the first answer.
            self._on_bookie(BookieKeysReply("open", (), {}), is_first=True)

        def heard(gate: BookieAuthorizer, said: BookieKeysReply) -> None:
            apply_reply(gate, said)
            self._on_bookie(said)

        def made(desk: TokenService, *arguments: Any) -> None:
            make(desk, *arguments)
            self._on_clock()

        def answered(link: Link, ident: int, error: DistributedLogError, **named: int) -> None:
            self._on_refused(link.principal, error)
            answer(link, ident, error, **named)

        def ended(watches: ServedWatches, ident: int, error: DistributedLogError) -> None:
            self._on_refused(watches._link.principal, error)
            end(watches, ident, error)

        def knows(rights: ClientAuthorizer, *arguments: Any) -> None:
            know(rights, *arguments)
            self._on_proxy(None)

        def listened(rights: ClientAuthorizer, concerned: set[str | None]) -> None:
            listen(rights, concerned)
            self._on_proxy(rights)

        return (
            (ClientAuthorizer, "__init__", knows),
            (ClientAuthorizer, "_apply_changes", listened),
            (BookieAuthorizer, "__init__", begun),
            (BookieAuthorizer, "apply_reply", heard),
            (TokenService, "__init__", made),
            (Link, "reply_error", answered),
            (ServedWatches, "end", ended),
            (gate_keeping, "EVERY_S", CHECK_INTERVAL_S),
            (gate_part, "CLOCK_TOLERANCE_S", TOLERANCE_S),
            (token_desk, "CLOCK_TOLERANCE_S", TOLERANCE_S),
            (token_desk, "VALID_S_MIN", 1),
            (kv_state, "REMEMBERED_REQUESTS", REQUESTS_KEPT),
            (quotas, "LEASES_PER_PRINCIPAL_MAX", LEASES_MAX),
            (quotas, "WATCHES_PER_PRINCIPAL_MAX", WATCHES_MAX),
            (quotas, "RESEND_WINDOW_S", FRESH_S),
        )

    def _on_bookie(self, answer: BookieKeysReply, *, is_first: bool = False) -> None:
        """Record an answer that the present bookie has received."""
        machine = machine_of_task.get()
        if machine is None:
            return
        self.bookie_effects.on_gate_answer(machine.name, answer)
        if is_first:
            self._on_clock()
        elif machine.name == self.cluster.bookies[0]:
            self._stolen_keys = answer

    def _on_proxy(self, rights: ClientAuthorizer | None) -> None:
        """Record the rights that the present proxy has received. None means that the proxy starts."""
        machine = machine_of_task.get()
        if machine is None:
            return
        if rights is None:
            self.proxy_rights.on_restart(machine.name)
            return
        tokens_from = {}
        for name in self.independent_authorizer.current_policy.users:
            user = rights.acl.user(f"user/{name}")
            tokens_from[name] = -1 if user is None or user.disabled else user.tokens_valid_from
        self.proxy_rights.on_rights(machine.name, rights.acl.mode, tokens_from)

    def _on_clock(self) -> None:
        """Record that the present node starts to use its clock."""
        machine = machine_of_task.get()
        if machine is not None:
            host = self.cluster.machines[machine.name]
            self.token_ends.on_clock(machine.name, host.wall_offset_ms)

    def _on_refused(self, principal: str, error: DistributedLogError) -> None:
        if isinstance(error, NotAllowed):
            if principal in WATCHED:
                self.denied_attempts += 1
            elif principal.startswith("user/"):
                # A bookie may have lost a replica assignment or a lease in the meantime.
                self._fail(f"{principal} was refused a permitted request: {error}")
        elif isinstance(error, OverQuota) and principal != CERTIFICATES[GREEDY]:
            self._fail(f"H236: {principal} was refused because of another user's limit: {error}")

    # --- the workload -----------------------------------------------------------------------------

    async def _begin(self) -> None:
        cluster = self.cluster
        cluster.start_client(ADMIN, self._administer)
        with trio.fail_after(FORMING_S):
            await self._set_up_done.wait()
        if self.is_calm:
            self._stop_random_faults()
        else:
            self.simulation.nursery.start_soon(self._jump_clocks)
            if self.silence_s < DAY_S:
                self.simulation.nursery.start_soon(self._isolate_bookies)
        mains = {
            EX: self._run_ex_writer,
            EVE: self._run_intruder,
            THIEF: self._run_thief,
            GREEDY: self._run_greedy,
        }
        for name in self.adversaries:
            if name == GUEST:
                shows = token_credentials(lambda: self._tokens[-1])
                cluster.start_client(GUEST, self._run_guest, credentials=shows)
            elif name == STRANGER:
                cluster.start_bare_machine(STRANGER, partial(flood, addresses=self._addresses))
            else:
                cluster.start_client(name, mains[name])
        if self.is_calm:
            await trio.sleep(1.0)  # so that the adversary starts before the writers

    def _stop_random_faults(self) -> None:
        """Remove random slowness: with few samples, one slow answer or segment roll would decide the p99."""
        self.cluster.network.faults.slow_chance = 0.0
        self.cluster.network.faults.latency_s = (0.0001, 0.001)
        for name in self.cluster.storage:
            for disk in self.cluster.machines[name].devices():
                disk.faults.slow_chance = 0.0

    def _addresses(self) -> list[Address]:
        return [self.cluster.address_of(name) for name in self.cluster.nodes]

    async def _jump_clocks(self) -> None:
        """Move the wall clocks of random nodes by an hour, forward or back (H237)."""
        rng = self.simulation.random_stream("clocks")
        while not self.nemesis.is_over:
            await trio.sleep(rng.expovariate(1 / 3.0))
            self.cluster.machines[rng.choice(self.cluster.nodes)].jump_clock(
                rng.choice((-HOUR_MS, HOUR_MS))
            )

    async def _isolate_bookies(self) -> None:
        """Cut a bookie off from the quorum only, for longer than it may serve users without it (H241)."""
        rng = self.simulation.random_stream("silence")
        while not self.nemesis.is_over:
            await trio.sleep(rng.expovariate(1 / 3.0))
            bookie = rng.choice(self.cluster.bookies)
            pairs = [(name, bookie) for name in self.cluster.metadata]
            duration_s = self.silence_s + rng.uniform(1.0, 5.0)
            self.nemesis.counts["silence"] += 1
            self.nemesis.cut(rng, [*pairs, *((b, a) for a, b in pairs)], duration_s)
            await trio.sleep(duration_s)

    async def _registers(self, process: str, namespace: Namespace, host: Host) -> None:
        """Do nothing: no user has a right to the registers."""
        await trio.sleep_forever()

    async def _measure(self, namespace: Namespace, host: Host) -> None:
        if self.has_deletions:
            await workload.make_and_delete(namespace, host.random)
        await trio.sleep_forever()

    async def _conclude(self) -> None:
        await super()._conclude()
        if not self.independent_authorizer.checked_commands and self.plan == "required":
            raise Violation("T1: no command was checked")
        with trio.move_on_after(DEAF_S) as timeout:
            while missing := [*self._bookies_unaware(), *self._proxies_unaware()]:  # noqa: ASYNC110
                await trio.sleep(1.0)
        if timeout.cancelled_caught:
            raise Violation(f"T3: {missing} have not received a revocation for {DEAF_S:g} s")
        token_ends = self.token_ends
        self.simulation.record_event(
            "trust",
            self.independent_authorizer.checked_commands,
            self.bookie_effects.effect_count,
            self.denied_attempts,
        )
        self.simulation.record_event(
            "told",
            self.disclosure_oracle.checked_answers,
            token_ends.accepted_proofs,
            token_ends.expired_proofs,
            token_ends.answered_requests,
        )
        proxy_rights = self.proxy_rights
        if self.cluster.proxies:
            self.simulation.record_event(
                "at proxies",
                proxy_rights.frames_to_token_users,
                proxy_rights.checked_subscriptions,
                proxy_rights.ended_subscriptions,
            )

    def _proxies_unaware(self) -> list[str]:
        """Return the proxies that lack the last revocation of the guest's tokens. No further ones follow."""
        expected = self.independent_authorizer.current_policy.tokens["guest"]
        observed = self.proxy_rights.observed
        return [
            name
            for name in self.cluster.proxies
            if name not in observed or observed[name].token_numbers.get("guest") != expected
        ]

    def _bookies_unaware(self) -> list[str]:
        """Return the bookies that lack the last revocation of the ex-writer's rights.

        No further ones follow.
        """
        if (
            self.independent_authorizer.current_policy.mode != "required"
            or not self._is_ex_writer_revoked
        ):
            return []
        return [name for name in self.cluster.bookies if not self._has_observed_revocation(name)]

    def _has_observed_revocation(self, bookie: str) -> bool:
        newest = self.bookie_effects.newest(bookie)
        # A grant that replaces an earlier one also revokes, at its own revision.
        return (
            newest is not None
            and newest.answer.revoked_at_revisions.get("user/ex", 0) > self._granted_at_revision
        )

    # --- the admin --------------------------------------------------------------------------------

    async def _administer(self, namespace: Namespace, host: Host) -> None:
        metadata = client_of(namespace)
        change = partial(self._change, metadata)
        if not self._set_up_done.is_set():
            await change("mode", "report", "root")
            for user in ("app", "reader", "ex", "eve", "guest", "greedy"):
                await change("user", user)
            for user, role in (
                ("root", "owner"),
                ("app", "owner"),
                ("reader", "reader"),
                ("ex", "writer"),
                ("guest", "reader"),
            ):
                await change("grant", user, role, PATH, "")
            self._granted_at_revision = self.independent_authorizer.revision
            while not self._tokens:
                await self._make_token(metadata)
            while True:
                with suppress(DistributedLogError, LogExists):
                    await namespace.create_log(OWN_LOG)
                if await namespace.log_exists(OWN_LOG):
                    break
            if self.plan != "report":
                await change("mode", "required" if self.plan == "required" else "open", "")
            self._set_up_done.set()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._make_tokens, metadata)
            await self._grant_and_revoke(metadata, change)

    async def _grant_and_revoke(self, metadata: MetadataClient, change: Callable[..., Any]) -> None:
        rng, mode_index = self._rng, 0
        while not self.nemesis.is_over:
            await trio.sleep(rng.expovariate(1.0 / ACT_S))
            choice = rng.random()
            if choice < 0.25:
                await self._rotate(metadata, "ledgers")
            elif choice < 0.5 and self.plan == "round":
                await change("mode", ROUND[mode_index % len(ROUND)], "")
                mode_index += 1
            elif self._is_ex_writer_revoked:
                await self._grant_ex_writer(change)
            else:
                await self._revoke_ex_writer(change)
        if self.plan == "round":
            for mode in ("report", "required"):
                await change("mode", mode, "")
        if not self._is_ex_writer_revoked:
            await self._revoke_ex_writer(change)
        await trio.sleep_forever()

    async def _make_tokens(self, metadata: MetadataClient) -> None:
        """Issue tokens to the guest, some for one log only, and sometimes revoke all of them."""
        rng = self.simulation.random_stream("tokens")
        while not self.nemesis.is_over:
            choice = rng.random()
            if choice < 0.1:
                await self._rotate(metadata, "tokens")
            elif choice < 0.25:
                await self._change(metadata, "tokens", "guest")
            await self._make_token(metadata, is_scoped=rng.random() < 0.4)
            await trio.sleep(rng.expovariate(1.0))
        await trio.sleep_forever()

    async def _make_token(self, metadata: MetadataClient, *, is_scoped: bool = False) -> None:
        valid_s = self._rng.randrange(1, TOKEN_S_MAX)
        scope = ((PATH, LOGS[0], READ),) if is_scoped else ()
        try:
            self._tokens.append(
                await metadata.make_token("guest", valid_s=valid_s, token_scope=scope)
            )
        except DistributedLogError as error:
            self.simulation.record_event("no token", type(error).__name__)
            await trio.sleep(AGAIN_S)

    async def _rotate(self, metadata: MetadataClient, kind: str) -> None:
        """Rotate secrets, as `dlog trust rotate` does."""
        try:
            self.simulation.record_event("rotated", kind, await metadata.rotate_secrets(kind))
        except DistributedLogError as error:
            self.simulation.record_event("not rotated", kind, type(error).__name__)

    async def _grant_ex_writer(self, change: Callable[..., Any]) -> None:
        self._is_ex_writer_revoked = False
        await change("enable", "ex")
        await change("grant", "ex", "writer", PATH, "")
        self._granted_at_revision = self.independent_authorizer.revision

    async def _revoke_ex_writer(self, change: Callable[..., Any]) -> None:
        self._revocation_near_until = self.simulation.now + 0.3
        await trio.sleep(self._rng.random() * 0.1)
        if self._rng.random() < 0.7:
            await change("revoke", "ex", PATH, "")
        else:
            await change("disable", "ex")
        self._is_ex_writer_revoked = True
        self.simulation.record_event("out", self.independent_authorizer.revision)

    async def _change(self, metadata: MetadataClient, *change: str) -> None:
        """Retry a change until it is answered. A repeated change has no further effect."""
        while True:
            try:
                await metadata.change_authorization(*change, force=True)
                return
            except InvalidRequest as error:
                self.simulation.record_event("done already", str(error)[:80])
                if change[0] in ("user", "revoke"):
                    return
                await trio.sleep(AGAIN_S)
            except DistributedLogError as error:
                self.simulation.record_event("again", change[0], type(error).__name__)
                await trio.sleep(AGAIN_S)

    # --- the ex-writer ------------------------------------------------------------------------------

    async def _run_ex_writer(self, namespace: Namespace, host: Host) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._collect_capabilities, namespace, host.random)
            nursery.start_soon(self._watch_all, namespace)
            nursery.start_soon(self._present_stolen, host, host.random, self._choose_for_ex_writer)
            nursery.start_soon(self._write_own_log, namespace, host.random)
            for _ in range(3):
                nursery.start_soon(self._write_versions, namespace, host.random)

    async def _collect_capabilities(self, namespace: Namespace, rng: Random) -> None:
        """Keep every capability that the ex-writer receives."""
        while True:
            await trio.sleep(rng.expovariate(5.0))
            self._stolen_by_ex_writer += await self._request_capabilities(
                client_of(namespace).request, rng
            )
            # The oldest are kept, too, because a faulty expiry could leave them valid.
            del self._stolen_by_ex_writer[LOOT_MAX:-LOOT_MAX]

    async def _request_capabilities(
        self, ask: Callable[[int, bytes], Awaitable[Reply]], rng: Random
    ) -> list[StolenCapability]:
        ledgers = [*self.independent_authorizer.ledgers.items()][-8:]
        kind = rng.choice(list(CapabilityKind))
        bookies_by_ledger = {
            ledger_id: record.bookies
            for ledger_id, record in rng.sample(ledgers, min(3, len(ledgers)))
        }
        try:
            answer = CapabilityReply.decode(
                (await ask(Op.META_CAPS, CapabilityRequest(kind, bookies_by_ledger).encode())).body
            )
        except DistributedLogError:
            return []
        return [
            StolenCapability(bookie, ledger_id, kind, key)
            for ledger_id, given_keys in answer.keys.items()
            for bookie, key in zip(bookies_by_ledger.get(ledger_id, ()), given_keys, strict=False)
        ]

    async def _watch_all(self, namespace: Namespace) -> None:
        """Watch all changes of a log, as long as the watch is allowed."""
        metadata = namespace.metadata
        while True:
            await trio.sleep(AGAIN_S)
            if not self.independent_authorizer.named_logs:
                continue
            start = b"log/%s/" % next(iter(self.independent_authorizer.named_logs)).encode()
            try:
                page = await metadata.range(start, prefix_end(start))
                async with metadata.watch(
                    start, prefix_end(start), after_revision=page.revision
                ) as watch:
                    while True:
                        await watch.next_batch()
            except DistributedLogError:
                continue

    async def _write_own_log(self, namespace: Namespace, rng: Random) -> None:
        """Write a log normally, so that streams to bookies are open when the right ends."""
        while True:
            await trio.sleep(AGAIN_S)
            try:
                writer = await namespace.open_log(OWN_LOG).open_writer(takeover=True)
            except DistributedLogError:
                continue
            try:
                while True:
                    await writer.write(LogRecord(workload.txid_now(), rng.randbytes(20)))
                    await trio.sleep(rng.expovariate(3.0))
            except DistributedLogError:
                await writer.abort()

    async def _write_versions(self, namespace: Namespace, rng: Random) -> None:
        """Make small permitted changes, very often while the right is about to end."""
        count = 0
        while True:
            is_revocation_near = self.simulation.now < self._revocation_near_until
            await trio.sleep(rng.expovariate(400.0 if is_revocation_near else 4.0))
            if not self.independent_authorizer.named_logs:
                continue
            log = int(next(iter(self.independent_authorizer.named_logs)), 16)
            count += 1
            try:
                await namespace.metadata.transact(
                    Transaction((), (Put(app_version_key(log, "ex"), b"%d" % count),))
                )
            except DistributedLogError:
                await trio.sleep(0 if is_revocation_near else AGAIN_S)

    def _choose_for_ex_writer(
        self, bookie: str, machine: str, rng: Random
    ) -> tuple[StolenCapability, str] | None:
        """Choose a capability and an operation.

        Harmful ones are used only after the bookie has the revocation.
        """
        stolen_here = [
            candidate for candidate in self._stolen_by_ex_writer if candidate.bookie == bookie
        ]
        if not stolen_here:
            return None
        chosen = rng.choice(stolen_here)
        if (
            self.plan == "required"
            and self._is_ex_writer_revoked
            and self._has_observed_revocation(machine)
        ):
            aimed = [
                replace(candidate, planted_entry=missing_entry)
                for candidate in stolen_here
                for missing_entry in self._missing_entries(candidate, machine)
            ]
            if aimed and rng.random() < 0.5:
                return rng.choice(aimed), "add"
            return chosen, rng.choice(("fence", "read", "add"))
        return chosen, "read"

    def _missing_entries(self, stolen: StolenCapability, machine: str) -> list[int]:
        """Return entries that a bookie lacks, so that a planted entry conflicts with none (H231)."""
        if stolen.kind is not CapabilityKind.RECOVER:
            return []
        holders = self.cluster.oracles.bookies.holders
        return [
            entry
            for (ledger, entry), holders_of_entry in holders.items()
            if ledger == stolen.ledger and machine not in holders_of_entry
        ][:3]

    # --- the guest ------------------------------------------------------------------------------------

    async def _run_guest(self, namespace: Namespace, host: Host) -> None:
        """Read with the newest token, and present all earlier ones."""
        log = LOGS[0]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                workload.tail, namespace, log, self.history, "guest", host.random, self.rates
            )
            nursery.start_soon(
                workload.catch_up, namespace, log, self.history, "guest", host.random, self.rates
            )
            nursery.start_soon(self._watch_all, namespace)
            for _ in range(2):
                nursery.start_soon(self._present_old_credentials, host, host.random)
            for number in range(2 * len(self.cluster.proxies)):
                nursery.start_soon(
                    read_by_tokens,
                    host,
                    self.cluster.proxied_uri,
                    self.cluster.client_config(host.name),
                    self._tokens,
                    {log: self.history, OWN_LOG: None},
                    self.simulation.random_stream(f"by token/{number}"),
                )
            while True:
                await trio.sleep(host.random.expovariate(2.0))
                with suppress(DistributedLogError):
                    await self._attack_by_read(namespace, host.random)

    async def _present_old_credentials(self, host: Host, rng: Random) -> None:
        """Connect with an old token or session credential, and keep the connection in use."""
        endpoint = Endpoint(host, lambda: Hello("", kind="client"))
        while True:
            await trio.sleep(rng.expovariate(2.0))
            is_bookie_target = bool(self._session_credentials) and rng.random() < 0.4
            if is_bookie_target:
                machine = rng.choice(self.cluster.bookies)
                session_credential = rng.choice(self._session_credentials[-20:])
                credentials = Credentials(BY_PASS, lambda context, proof=session_credential: proof)  # type: ignore[misc]
            else:
                machine = rng.choice(self.cluster.metadata)
                token = rng.choice(self._tokens[-8:])
                credentials = token_credentials(lambda shown=token: shown)  # type: ignore[misc]
            async with trio.open_nursery() as nursery:
                with suppress(DistributedLogError), trio.move_on_after(6.0):
                    address = self.cluster.address_of(machine)
                    link = await endpoint.dial(address, nursery=nursery, credentials=credentials)
                    while True:
                        await self._request_over(link, is_bookie_target, rng)
                        await trio.sleep(rng.expovariate(2.0))
                nursery.cancel_scope.cancel()

    async def _request_over(self, link: ClientLink, is_bookie_target: bool, rng: Random) -> None:
        """Send a request over a connection.

        Rejected requests are ignored; errors that end the connection are raised.
        """

        async def ask(op: int, body: bytes) -> Reply:
            return await link.request(op, body, timeout_s=ASK_S)

        try:
            if is_bookie_target:
                stolen_here = [
                    candidate
                    for candidate in self._stolen_by_guest
                    if candidate.bookie == link.peer.node_id
                ]
                if stolen_here:
                    await self._try_stolen(
                        BookieClient(link, link.peer.node_id), rng.choice(stolen_here), "read"
                    )
            elif rng.random() < 0.5:
                key = state_key(int(next(iter(self.independent_authorizer.named_logs), "0"), 16))
                await ask(Op.META_READ, RangeRequest(key, None).encode())
            else:
                reply = await ask(Op.META_CAPS, CapabilityRequest(CapabilityKind.LIST, {}).encode())
                self._session_credentials.append(
                    CapabilityReply.decode(reply.body).session_credential
                )
                self._stolen_by_guest += await self._request_capabilities(ask, rng)
                del self._stolen_by_guest[:-LOOT_MAX]
        except DistributedLogError:
            if link.closed is not None:
                raise

    # --- the intruder ---------------------------------------------------------------------------------

    async def _run_intruder(self, namespace: Namespace, host: Host) -> None:
        rng = host.random
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._present_stolen, host, rng, self._choose_for_intruder)
            nursery.start_soon(self._watch_all, namespace)
            attacks = (
                self._attack_lease,
                self._attack_request_numbers,
                self._attack_by_compare,
                self._attack_by_read,
                self._attack_by_write,
                self._attack_deletion_list,
                self._attack_capabilities,
                self._attack_by_admin_request,
            )
            while True:
                await trio.sleep(rng.expovariate(12.0))
                attack = rng.choice(attacks)
                try:
                    await attack(namespace, rng)
                except DistributedLogError:
                    continue

    async def _attack_lease(self, namespace: Namespace, rng: Random) -> None:
        """Renew or revoke the lease of another client, or the next one to be granted."""
        leases = list(self.independent_authorizer.lease_owners)
        if leases:
            lease = rng.choice((rng.choice(leases), max(leases) + rng.randrange(1, 4)))
            if rng.random() < 0.3 and self.independent_authorizer.lease_owners.get(lease):
                owner = self.independent_authorizer.lease_owners[lease]
                await namespace.metadata.renew_lease(lease)
                if self.independent_authorizer.lease_owners.get(lease) == owner:
                    self._fail(f"T1: user/eve renewed lease {lease} of {owner}")
            else:
                await namespace.metadata.revoke_lease(lease)

    async def _attack_request_numbers(self, namespace: Namespace, rng: Random) -> None:
        """Forge the next request numbers of another client, so that its requests count as answered (H216)."""
        others = [*self.independent_authorizer.last_requests.items()]
        if others:
            client, last = rng.choice(others)
            for number in range(last + 1, last + 4):
                forged = Transact(client.rpartition("/")[2], number, NEVER, Transaction())
                await client_of(namespace).request(Op.META_TRANSACT, encode_command(forged))

    async def _attack_by_compare(self, namespace: Namespace, rng: Random) -> None:
        """Send a false condition, whose answer would show the present value (H234)."""
        for log in [*self.independent_authorizer.named_logs][:3]:
            compare = Compare.version(state_key(int(log, 16)), NEVER)
            await namespace.metadata.transact(Transaction((compare,)))

    async def _attack_by_read(self, namespace: Namespace, rng: Random) -> None:
        for start in (b"log/", b"name/", b"ledger/", b"trust/", b"secret/", b"logconf/", b"audit/"):
            with suppress(NotAllowed):
                await namespace.metadata.range(start, prefix_end(start))
        for namespace_path, name in self.independent_authorizer.all_paths()[-3:]:
            with suppress(NotAllowed):
                await namespace.metadata.get(
                    b"name/%s\0%s" % (namespace_path.encode(), name.encode())
                )

    async def _attack_by_write(self, namespace: Namespace, rng: Random) -> None:
        for log in [*self.independent_authorizer.named_logs][:2]:
            key = app_version_key(int(log, 16), "eve")
            await namespace.metadata.transact(Transaction((), (Put(key, b"eve"),)))

    async def _attack_deletion_list(self, namespace: Namespace, rng: Random) -> None:
        """Put a purge task for a ledger that is not being deleted (H213)."""
        ledgers = [*self.independent_authorizer.ledgers.items()][-20:]
        if ledgers:
            number, known_ledgers = rng.choice(ledgers)
            key = keys.delete_key(rng.choice(known_ledgers.bookies), number)
            await namespace.metadata.transact(Transaction((), (Put(key, b""),)))

    async def _attack_capabilities(self, namespace: Namespace, rng: Random) -> None:
        await self._request_capabilities(client_of(namespace).request, rng)

    def _some_bookie(self) -> str:
        known_bookies = next(iter(self.independent_authorizer.ledgers.values()), None)
        return "none" if known_bookies is None else known_bookies.bookies[0]

    async def _attack_by_admin_request(self, namespace: Namespace, rng: Random) -> None:
        """Try to form a cluster, back this one up, get other keys or tokens, or rotate secrets."""
        op, body = rng.choice(
            (
                (Op.META_FORM, b""),
                (Op.META_SAVE, BackupRequest(0, 0).encode()),
                (Op.META_CAPS, BookieKeysRequest(self._some_bookie()).encode()),
                (Op.META_TRUST, TokenRequest("root", 60).encode()),
                (Op.META_TRUST, RotateRequest("ledgers").encode()),
            )
        )
        with suppress(NotAllowed):
            await client_of(namespace).request(op, body)
            if self.independent_authorizer.current_policy.mode == "required":
                self._fail(f"T1: user/eve received an answer to operation {op}")

    def _choose_for_intruder(
        self, bookie: str, machine: str, rng: Random
    ) -> tuple[StolenCapability, str] | None:
        """Choose another client's capability, or a random one for a future ledger (H230).

        Only at bookies that enforce authorization: otherwise the first presented key becomes that of the
        ledger.
        """
        if not self._is_enforcing(machine):
            return None
        stolen_here = [
            candidate for candidate in self._stolen_by_ex_writer if candidate.bookie == bookie
        ]
        if not stolen_here or rng.random() < 0.3:
            number = max(self.independent_authorizer.ledgers, default=0) + rng.randrange(1, 5)
            first = rng.choice((0, *CapabilityKind))
            key = bytes((first,)) + rng.randbytes(CAPABILITY_BYTES - 1)
            return StolenCapability(bookie, number, CapabilityKind.ADD, key), rng.choice(
                ("fence", "add")
            )
        return rng.choice(stolen_here), rng.choice(("fence", "read"))

    def _is_enforcing(self, machine: str) -> bool:
        """Return whether a bookie enforces authorization, according to the last answer it received."""
        newest = self.bookie_effects.newest(machine)
        return newest is not None and newest.answer.mode == "required"

    # --- the thief ----------------------------------------------------------------------------------------

    async def _run_thief(self, namespace: Namespace, host: Host) -> None:
        rng, stolen = host.random, list[StolenCapability]()

        def with_other_kind(
            bookie: str, machine: str, chance: Random
        ) -> tuple[StolenCapability, str] | None:
            """Present a capability for listing as one for recovery or reading."""
            stolen_here = [base for base in stolen if base.bookie == bookie]
            if not stolen_here or not self._is_enforcing(machine):
                return None
            base = chance.choice(stolen_here)
            kind = chance.choice((CapabilityKind.RECOVER, CapabilityKind.READ, base.kind))
            attempt = "fence" if kind is CapabilityKind.RECOVER else "read"
            return replace(base, key=bytes((kind,)) + base.key[1:]), attempt

        name = CERTIFICATES["c1"]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._present_stolen, host, rng, with_other_kind)
            nursery.start_soon(
                self._present_stolen, host, rng, partial(self._choose_made, name), name
            )
            while True:
                await trio.sleep(rng.expovariate(3.0))
                try:
                    stolen += await self._request_capabilities(client_of(namespace).request, rng)
                    del stolen[:-LOOT_MAX]
                    await self._impersonate_bookie(namespace, stolen, rng)
                except DistributedLogError:
                    continue

    def _choose_made(
        self, name: str, bookie: str, machine: str, rng: Random
    ) -> tuple[StolenCapability, str] | None:
        """Forge a capability of ``name`` with the keys of the first bookie, for use at another one (H229)."""
        keys_stolen, ledger_ids = self._stolen_keys, [*self.independent_authorizer.ledgers][-8:]
        if (
            keys_stolen is None
            or not keys_stolen.generations
            or not ledger_ids
            or machine == self.cluster.bookies[0]
        ):
            return None
        if not self._is_enforcing(machine):
            return None
        kind, ledger = (
            rng.choice((CapabilityKind.READ, CapabilityKind.RECOVER)),
            rng.choice(ledger_ids),
        )
        key = make_capability(
            keys_stolen.generations[0],
            kind,
            ledger,
            name,
            keys_stolen.revoked_at_revisions.get(name, 0),
        )
        attempt = "read" if kind is CapabilityKind.READ else rng.choice(("fence", "add"))
        return StolenCapability(bookie, ledger, kind, key), attempt

    def _forged_credentials(self, name: str) -> Credentials | None:
        """Return a forged session credential.

        All bookies share the key for these, so the forgery itself works.
        """
        stolen = self._stolen_keys
        if not name or stolen is None or not stolen.generations:
            return None
        proof = issue_session_credential(
            stolen.generations[0], name, stolen.revoked_at_revisions.get(name, 0)
        )
        return Credentials(BY_PASS, lambda context: proof)

    async def _impersonate_bookie(
        self, namespace: Namespace, stolen: Sequence[StolenCapability], rng: Random
    ) -> None:
        """Request another bookie's keys, put a purge task, and register as the target of a replica move."""
        if not stolen:
            return
        chosen = rng.choice(stolen)
        metadata = client_of(namespace)
        with suppress(NotAllowed):
            await metadata.request(Op.META_CAPS, BookieKeysRequest(chosen.bookie).encode())
        if self.plan == "required":  # keys that were put before the mode was enforced stay valid
            cookie = pack({"label": "b9", "incarnation": 1})
            move = ReplicaMove(chosen.bookie, 0, 1).encode()
            for puts in (
                (Put(keys.delete_key(chosen.bookie, chosen.ledger), b""),),
                (Put(keys.cookie_key("b9"), cookie), Put(keys.move_key("b9", chosen.ledger), move)),
            ):
                with suppress(NotAllowed):
                    await metadata.transact(Transaction((), puts))

    # --- the greedy user -------------------------------------------------------------------------------

    async def _run_greedy(self, namespace: Namespace, host: Host) -> None:
        await Greedy(client_of(namespace), host, self._addresses).run()

    # --- at bookies -----------------------------------------------------------------------------------

    async def _present_stolen(
        self,
        host: Host,
        rng: Random,
        choose: Callable[[str, str, Random], tuple[StolenCapability, str] | None],
        name: str = "",
    ) -> None:
        """Present chosen capabilities to random bookies over new connections.

        Args:
            choose: Returns the capability and the operation for a bookie, or None.
            name: If given, connect with a forged session credential of this principal.
        """
        endpoint = Endpoint(host, lambda: Hello("", kind="client"))
        while True:
            await trio.sleep(rng.expovariate(3.0))
            machine = rng.choice(self.cluster.bookies)
            async with trio.open_nursery() as nursery:
                try:
                    with trio.move_on_after(5 * ASK_S):
                        link = await endpoint.dial(
                            self.cluster.address_of(machine),
                            nursery=nursery,
                            credentials=self._forged_credentials(name),
                        )
                        client = BookieClient(link, link.peer.node_id)
                        for _ in range(rng.randrange(1, 6)):
                            chosen = choose(link.peer.node_id, machine, rng)
                            if chosen is not None:
                                await self._try_stolen(client, *chosen)
                except DistributedLogError:
                    pass
                nursery.cancel_scope.cancel()

    async def _try_stolen(
        self, client: BookieClient, stolen: StolenCapability, attempt: str
    ) -> None:
        """Try an operation with a stolen capability. The oracles observe its effects on the network."""
        try:
            if attempt == "fence":
                await client.fence(stolen.ledger, stolen.key, ASK_S)
            elif attempt == "read":
                await client.read(
                    stolen.ledger, stolen.key, 0, 5, 1000, past_lac=True, timeout_s=ASK_S
                )
            else:
                finished = trio.Event()
                stream = client.open_stream(
                    stolen.ledger,
                    stolen.key,
                    recovery=stolen.kind is CapabilityKind.RECOVER,
                    fragment_epoch=0,
                    on_acked=lambda count: finished.set(),
                    on_refused=lambda position, error: finished.set(),
                )
                stream.send(
                    entries.encode(stolen.ledger, stolen.planted_entry, 0, -1, (b"planted",), 7)
                )
                with trio.move_on_after(ASK_S):
                    await finished.wait()
                stream.close()
        except DistributedLogError:
            if client.close_error is not None:
                raise


def client_of(namespace: Namespace) -> MetadataClient:
    """Return the metadata client of a direct namespace."""
    assert isinstance(namespace.metadata, MetadataClient), "the namespace uses proxies"
    return namespace.metadata
