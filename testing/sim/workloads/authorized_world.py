"""Seeds of a cluster where it counts who asks: certificates, grants, and those who have none (T1 to T4).

The same cluster, workload and faults as in `seed.py`, and machines hold certificates. An admin gives rights,
takes them, draws new secrets, disables a user, makes tokens and revokes them, and in a quarter of the seeds
goes from open to required and back, all while logs are written; clocks jump by an hour, and a bookie may be
cut off from the quorum alone. Others try what they must not:

- an ex-writer, who keeps all that he ever got, and knows which copy lacks what;
- a guest, who comes by tokens and shows those that have ended;
- a squatter, who has no right and knows everything: ids, requests, leases, others' capabilities;
- a thief, with a bookie's certificate, and with the keys of another bookie;
- in some seeds a greedy user, and strangers (`overload.py`).

In a quarter of the seeds there is a read proxy, to which the guest shows its tokens, too.

What they try harms nobody where it is refused, or is not judged. Judged by
`testing/verify/checks/independent_authorizer.py`, a judge of its own: over the commands of the metadata's
log, what it shows to whom (`disclosure_oracle.py`), what bookies do for whom (`bookie_effect_oracle.py`),
proxies for who comes by a token (`proxy_rights_oracle.py`), what ends by a clock
(`token_expiry.py`).
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any

import trio

from ....bookie.client.bookie_client import BookieClient
from ....bookie.format import entry as entries
from ....bookie.session import bookie_authorizer as gate_part
from ....bookie.session.bookie_authorizer import BookieAuthorizer
from ....cluster.auth import authorizer_feed as gate_keeping
from ....cluster.repair.pull_replication import ReplicaMove
from ....ledger.model import ledger_keys as keys
from ....log.format.record import LogRecord
from ....log.model.log_keys import state_key, txn_key
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
from ....metadata.state.kv_state import KeyValueState
from ....metadata.storage.backup_format import SaveRequest
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
    capability,
    issue_pass,
)
from ....runtime.protocol.capability_messages import (
    CapsAnswer,
    CapsQuestion,
    GateAnswer,
    GateQuestion,
)
from ....runtime.protocol.frames import Op, pack
from ....runtime.protocol.handshake import Hello
from ....runtime.protocol.tokens import READ
from ...verify.checks.history_check import Violation
from ...verify.checks.independent_authorizer import SecondJudge
from ...verify.workloads import workload
from ..faults.overload import (
    CONNECTIONS_MAX,
    FRESH_S,
    LEASES_MAX,
    REQUESTS_KEPT,
    WATCHES_MAX,
    Greedy,
    Shares,
    flood,
)
from ..oracles.bookie_effect_oracle import LOOK_S, BookieEffectOracle
from ..oracles.connection_observer import BY_PASS, ConnectionObserver
from ..oracles.disclosure_oracle import DisclosureOracle
from ..oracles.proxy_rights_oracle import AtProxies, read_by_tokens
from ..oracles.token_expiry import TokenEnds
from ..world.bug_injection import Patch, planted
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
"""The guest has tokens, the stranger nothing."""
GUEST_NAME = "user/guest"
WATCHED = {GUEST_NAME, *(CERTIFICATES[name] for name in (EX, EVE, THIEF, GREEDY))}
"""Who is refused something."""
PLANS = ("required", "required", "round", "report")
"""The mode from the first client on; ``round``: open, then to required and back, and again."""
ROUND = ("report", "required", "report", "open")
ACT_S = 1.5
"""Mean pause between two acts of the admin."""
AGAIN_S = 0.3
ASK_S = 1.0
LOOT_MAX = 100
"""Of the oldest, and of the newest."""
DEAF_S = 90.0
"""After the heal every bookie hears of a revocation within this: it asks each minute."""
NEVER = 1 << 62
DAY_S = 86_400.0
SILENCE_S = 4.0
"""In half of the seeds a bookie that hears nothing for so long serves nodes alone."""
HOUR_MS = 3_600_000
TOLERANCE_S = 2
"""Of tokens' ends; production's is longer than a seed."""
TOKEN_S_MAX = 8
PROXY_CHANCE = 0.25
OWN_LOG = "scratch"
"""Which the ex-writer writes as anybody would."""


@dataclass(frozen=True, slots=True)
class Loot:
    """A capability that somebody was given once, or made."""

    bookie: str
    ledger: int
    kind: CapabilityKind
    key: bytes
    entry: int = 0
    """Which one it would plant."""


class TrustedRun(LogRun):
    """One seed of it."""

    def __init__(
        self,
        seed: int,
        *,
        chaos_s: float = CHAOS_S,
        keep_trace: bool = False,
        calm_beside: Sequence[str] | None = None,
        with_proxy: bool = False,
    ) -> None:
        """``calm_beside``: nothing goes wrong but by these machines (`writer_progress.py`).

        ``with_proxy``: there is a read proxy, whatever the seed says.
        """
        super().__init__(seed, chaos_s=chaos_s, keep_trace=keep_trace)
        simulation, chance = self.simulation, self.simulation.chance("trust")
        self.plan = chance.choice(PLANS)
        drawn = simulation.chance("at proxies").random() < PROXY_CHANCE
        there = calm_beside is None and (drawn or with_proxy)
        self.shape = replace(
            self.shape, others=7, certificates=CERTIFICATES, read_proxies=int(there)
        )
        self.silence_s = chance.choice((SILENCE_S, DAY_S))
        self.adversaries = [EX, EVE, THIEF, GUEST]
        self.adversaries += [name for name in (STRANGER, GREEDY) if chance.random() < 0.25]
        if calm_beside is not None:
            self.calm, self.plan, self.silence_s = True, "required", DAY_S
            self.adversaries = list(calm_beside)
        self._make_oracles()
        self.refused = 0
        """Attempts that were, of those who may not."""
        self._chance = chance
        self._set_up = trio.Event()
        self._loot: list[Loot] = []
        self._tokens: list[bytes] = []
        """All that the guest ever had, the newest last."""
        self._passes: list[bytes] = []
        self._loot_of_guest: list[Loot] = []
        self._stolen: GateAnswer | None = None
        """What the first bookie checks by."""
        self._is_out = False
        """The ex-writer was told that it may not, and was not let in again since."""
        self._let_in_at = 0
        """The revision when it was given something last."""
        self._hurry_until = 0.0
        """Something is taken from it about now: it does what it can."""

    def _make_oracles(self) -> None:
        """Make what judges the run, and have it hear of what is said on connections."""
        simulation = self.simulation
        self.judge = SecondJudge(self._fail, stolen={CERTIFICATES[THIEF]})
        self.meetings = ConnectionObserver(lambda: simulation.now, lambda: self.judge.revision)
        self.shown = DisclosureOracle(self.judge, self._fail)
        self.effects = BookieEffectOracle(
            lambda: simulation.now,
            self.judge,
            self.shown,
            self._fail_at_bookie,
            watched=("c1", "c2", "c3", EX, EVE, THIEF, GUEST, GREEDY),
            thieves=(THIEF,),
            silence_s=self.silence_s,
            stood_until=self._stood_until,
        )
        self.token_ends = TokenEnds(
            lambda: simulation.now,
            self.judge,
            self._fail,
            tolerance_s=TOLERANCE_S,
            stood_until=self._stood_until,
        )
        self.at_proxies = AtProxies(
            lambda: simulation.now, self.judge, self._fail, stood_until=self._stood_until
        )
        self.shares = Shares(
            lambda: simulation.now, self.judge, self._fail, greedy=CERTIFICATES[GREEDY]
        )
        # Where a token ends is said first: what proxies do is held to it.
        self.meetings.listeners += [self.shown, self.effects, self.token_ends, self.at_proxies]

    def _stood_until(self, node: str) -> float:
        return self.cluster.machines[node].stood_until

    def _fail(self, what: str) -> None:
        self.simulation.fail(Violation(what))

    def _fail_at_bookie(self, what: str) -> None:
        self._fail(f"T3: {what}")

    async def _main(self, simulation: Simulation) -> None:
        defaults: dict[str, Any] = KeyValueState.__init__.__kwdefaults__  # type: ignore[assignment]
        before = dict(defaults)
        assert "requests_max" in before, "the argument has moved"
        with planted(self._ears()):
            defaults["requests_max"] = REQUESTS_KEPT
            try:
                await super()._main(simulation)
            finally:
                defaults.update(before)

    def _on_cluster(self, cluster: SimCluster) -> None:
        cluster.network.taps.append(self.meetings)
        cluster.oracles.on_applied += [self.judge.on_applied, self.shares.on_applied]
        for name in cluster.nodes:
            cluster.machines[name].connections_max = CONNECTIONS_MAX

    def _ears(self) -> Sequence[Patch]:
        """What is heard of the product from inside, and bounds that are met within half a minute."""
        begin, hear, make = BookieAuthorizer.__init__, BookieAuthorizer.hear, TokenService.__init__
        answer, end = Link.reply_error, ServedWatches.end
        know, listen = ClientAuthorizer.__init__, ClientAuthorizer._heard

        def begun(gate: BookieAuthorizer, silence_s: float, time_s: Callable[[], float]) -> None:
            begin(gate, self.silence_s, time_s)
            # And what it hears first it may not note.
            self._on_bookie(GateAnswer("open", (), {}), begins=True)

        def heard(gate: BookieAuthorizer, said: GateAnswer) -> None:
            hear(gate, said)
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
            (ClientAuthorizer, "_heard", listened),
            (BookieAuthorizer, "__init__", begun),
            (BookieAuthorizer, "hear", heard),
            (TokenService, "__init__", made),
            (Link, "reply_error", answered),
            (ServedWatches, "end", ended),
            (gate_keeping, "EVERY_S", LOOK_S),
            (gate_part, "TOLERANCE_S", TOLERANCE_S),
            (token_desk, "TOLERANCE_S", TOLERANCE_S),
            (token_desk, "VALID_S_MIN", 1),
            (quotas, "LEASES_OF_ONE_MAX", LEASES_MAX),
            (quotas, "WATCHES_OF_ONE_MAX", WATCHES_MAX),
            (quotas, "FRESH_S", FRESH_S),
        )

    def _on_bookie(self, said: GateAnswer, *, begins: bool = False) -> None:
        """The bookie that runs now has heard that."""
        machine = machine_of_task.get()
        if machine is None:
            return
        self.effects.on_heard(machine.name, said)
        if begins:
            self._on_clock()
        elif machine.name == self.cluster.bookies[0]:
            self._stolen = said

    def _on_proxy(self, rights: ClientAuthorizer | None) -> None:
        """The proxy that runs now has heard that; None: it begins."""
        machine = machine_of_task.get()
        if machine is None:
            return
        if rights is None:
            self.at_proxies.on_begun(machine.name)
            return
        numbers = {}
        for name in self.judge.now.users:
            user = rights.table.user(f"user/{name}")
            numbers[name] = -1 if user is None or user.disabled else user.tokens_from
        self.at_proxies.on_heard(machine.name, rights.table.mode, numbers)

    def _on_clock(self) -> None:
        """The node that runs now begins to go by its clock."""
        machine = machine_of_task.get()
        if machine is not None:
            host = self.cluster.machines[machine.name]
            self.token_ends.on_clock(machine.name, host.wall_offset_ms)

    def _on_refused(self, principal: str, error: DistributedLogError) -> None:
        if isinstance(error, NotAllowed):
            if principal in WATCHED:
                self.refused += 1
            elif principal.startswith("user/"):
                # A bookie may have lost a place, or a lease, meanwhile.
                self._fail(f"{principal} was refused what it may: {error}")
        elif isinstance(error, OverQuota) and principal != CERTIFICATES[GREEDY]:
            self._fail(f"H236: {principal} was told of a bound that another one met: {error}")

    # --- the workload -----------------------------------------------------------------------------

    async def _begin(self) -> None:
        cluster = self.cluster
        cluster.start_client(ADMIN, self._govern)
        with trio.fail_after(FORMING_S):
            await self._set_up.wait()
        if self.calm:
            self._be_calm()
        else:
            self.simulation.nursery.start_soon(self._shake_clocks)
            if self.silence_s < DAY_S:
                self.simulation.nursery.start_soon(self._cut_off)
        mains = {EX: self._once_a_writer, EVE: self._squat, THIEF: self._steal, GREEDY: self._hoard}
        for name in self.adversaries:
            if name == GUEST:
                shows = token_credentials(lambda: self._tokens[-1])
                cluster.start_client(GUEST, self._visit, shows=shows)
            elif name == STRANGER:
                cluster.start_stranger(STRANGER, partial(flood, addresses=self._addresses))
            else:
                cluster.start_client(name, mains[name])
        if self.calm:
            await trio.sleep(1.0)  # who means harm is there first

    def _be_calm(self) -> None:
        """One slow answer in a hundred would be the p99, with and without; so would a roll among few."""
        self.cluster.network.faults.slow_chance = 0.0
        self.cluster.network.faults.latency_s = (0.0001, 0.001)
        for name in self.cluster.storage:
            for disk in self.cluster.machines[name].devices():
                disk.faults.slow_chance = 0.0

    def _addresses(self) -> list[Address]:
        """Of the nodes, as they are now."""
        return [self.cluster.address_of(name) for name in self.cluster.nodes]

    async def _shake_clocks(self) -> None:
        """By an hour, either way, of whoever says when something ends (H237)."""
        chance = self.simulation.chance("clocks")
        while not self.nemesis.over:
            await trio.sleep(chance.expovariate(1 / 3.0))
            self.cluster.machines[chance.choice(self.cluster.nodes)].jump_clock(
                chance.choice((-HOUR_MS, HOUR_MS))
            )

    async def _cut_off(self) -> None:
        """A bookie from the quorum, and from nobody else, for longer than it may be silent (H241)."""
        chance = self.simulation.chance("silence")
        while not self.nemesis.over:
            await trio.sleep(chance.expovariate(1 / 3.0))
            bookie = chance.choice(self.cluster.bookies)
            pairs = [(name, bookie) for name in self.cluster.metadata]
            lasts_s = self.silence_s + chance.uniform(1.0, 5.0)
            self.nemesis.counts["silence"] += 1
            self.nemesis.cut(chance, [*pairs, *((b, a) for a, b in pairs)], lasts_s)
            await trio.sleep(lasts_s)

    async def _registers(self, process: str, namespace: Namespace, host: Host) -> None:
        """Nobody has a right to these."""
        await trio.sleep_forever()

    async def _measure(self, namespace: Namespace, host: Host) -> None:
        if self.deletes:
            await workload.make_and_delete(namespace, host.random)
        await trio.sleep_forever()

    async def _conclude(self) -> None:
        await super()._conclude()
        if not self.judge.judged and self.plan == "required":
            raise Violation("T1: nothing was judged")
        with trio.move_on_after(DEAF_S) as deaf:
            while missing := [*self._deaf_bookies(), *self._deaf_proxies()]:  # noqa: ASYNC110
                await trio.sleep(1.0)
        if deaf.cancelled_caught:
            raise Violation(f"T3: {missing} have not heard of a revocation for {DEAF_S:g} s")
        ends = self.token_ends
        self.simulation.note("trust", self.judge.judged, self.effects.effects, self.refused)
        self.simulation.note("told", self.shown.judged, ends.taken, ends.ended, ends.answered)
        there = self.at_proxies
        if self.cluster.proxies:
            self.simulation.note("at proxies", there.given, there.let_in, there.ended)

    def _deaf_proxies(self) -> list[str]:
        """Those that do not know which of the guest's tokens were revoked; none is any more."""
        number = self.judge.now.tokens["guest"]
        heard = self.at_proxies.heard
        return [
            name
            for name in self.cluster.proxies
            if name not in heard or heard[name].numbers.get("guest") != number
        ]

    def _deaf_bookies(self) -> list[str]:
        """Those that do not know what was taken from the ex-writer last; nothing is taken any more."""
        if self.judge.now.mode != "required" or not self._is_out:
            return []
        return [name for name in self.cluster.bookies if not self._knows(name)]

    def _knows(self, bookie: str) -> bool:
        """Has it heard that the ex-writer is out?"""
        heard = self.effects.newest(bookie)
        return heard is not None and heard.said.since.get("user/ex", 0) >= self._let_in_at

    # --- the admin --------------------------------------------------------------------------------

    async def _govern(self, namespace: Namespace, host: Host) -> None:
        metadata = client_of(namespace)
        change = partial(self._change, metadata)
        if not self._set_up.is_set():
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
            self._let_in_at = self.judge.revision
            while not self._tokens:
                await self._mint(metadata)
            while True:
                with suppress(DistributedLogError, LogExists):
                    await namespace.create_log(OWN_LOG)
                if await namespace.log_exists(OWN_LOG):
                    break
            if self.plan != "report":
                await change("mode", "required" if self.plan == "required" else "open", "")
            self._set_up.set()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._make_tokens, metadata)
            await self._give_and_take(metadata, change)

    async def _give_and_take(self, metadata: MetadataClient, change: Callable[..., Any]) -> None:
        chance, turn = self._chance, 0
        while not self.nemesis.over:
            await trio.sleep(chance.expovariate(1.0 / ACT_S))
            act = chance.random()
            if act < 0.25:
                await self._rotate(metadata, "ledgers")
            elif act < 0.5 and self.plan == "round":
                await change("mode", ROUND[turn % len(ROUND)], "")
                turn += 1
            elif self._is_out:
                await self._let_in(change)
            else:
                await self._put_out(change)
        if self.plan == "round":
            for mode in ("report", "required"):
                await change("mode", mode, "")
        if not self._is_out:
            await self._put_out(change)
        await trio.sleep_forever()

    async def _make_tokens(self, metadata: MetadataClient) -> None:
        """For the guest: one after the other, some for one log alone; all of them may be revoked."""
        chance = self.simulation.chance("tokens")
        while not self.nemesis.over:
            act = chance.random()
            if act < 0.1:
                await self._rotate(metadata, "tokens")
            elif act < 0.25:
                await self._change(metadata, "tokens", "guest")
            await self._mint(metadata, narrow=chance.random() < 0.4)
            await trio.sleep(chance.expovariate(1.0))
        await trio.sleep_forever()

    async def _mint(self, metadata: MetadataClient, *, narrow: bool = False) -> None:
        valid_s = self._chance.randrange(1, TOKEN_S_MAX)
        only = ((PATH, LOGS[0], READ),) if narrow else ()
        try:
            self._tokens.append(await metadata.make_token("guest", valid_s=valid_s, narrowing=only))
        except DistributedLogError as error:
            self.simulation.note("no token", type(error).__name__)
            await trio.sleep(AGAIN_S)

    async def _rotate(self, metadata: MetadataClient, what: str) -> None:
        """`dlog trust rotate`."""
        try:
            self.simulation.note("rotated", what, await metadata.rotate_secrets(what))
        except DistributedLogError as error:
            self.simulation.note("not rotated", what, type(error).__name__)

    async def _let_in(self, change: Callable[..., Any]) -> None:
        self._is_out = False
        await change("enable", "ex")
        await change("grant", "ex", "writer", PATH, "")
        self._let_in_at = self.judge.revision

    async def _put_out(self, change: Callable[..., Any]) -> None:
        self._hurry_until = self.simulation.now + 0.3
        await trio.sleep(self._chance.random() * 0.1)
        if self._chance.random() < 0.7:
            await change("revoke", "ex", PATH, "")
        else:
            await change("disable", "ex")
        self._is_out = True
        self.simulation.note("out", self.judge.revision)

    async def _change(self, metadata: MetadataClient, *change: str) -> None:
        """Until it is answered; said twice is once."""
        while True:
            try:
                await metadata.change_trust(*change, force=True)
                return
            except InvalidRequest as error:
                self.simulation.note("done already", str(error)[:80])
                if change[0] in ("user", "revoke"):
                    return
                await trio.sleep(AGAIN_S)
            except DistributedLogError as error:
                self.simulation.note("again", change[0], type(error).__name__)
                await trio.sleep(AGAIN_S)

    # --- who writes now and then --------------------------------------------------------------------

    async def _once_a_writer(self, namespace: Namespace, host: Host) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._collect, namespace, host.random)
            nursery.start_soon(self._watch_all, namespace)
            nursery.start_soon(self._use_loot, host, host.random, self._of_ex)
            nursery.start_soon(self._write_own, namespace, host.random)
            for _ in range(3):
                nursery.start_soon(self._scribble, namespace, host.random)

    async def _collect(self, namespace: Namespace, chance: Random) -> None:
        """Keep every capability that is given."""
        while True:
            await trio.sleep(chance.expovariate(5.0))
            self._loot += await self._ask_capabilities(client_of(namespace).ask, chance)
            del self._loot[LOOT_MAX:-LOOT_MAX]  # the oldest: time may have forgotten to end them

    async def _ask_capabilities(
        self, ask: Callable[[int, bytes], Awaitable[Reply]], chance: Random
    ) -> list[Loot]:
        ledgers = [*self.judge.ledgers.items()][-8:]
        kind = chance.choice(list(CapabilityKind))
        asked = {
            number: known.bookies for number, known in chance.sample(ledgers, min(3, len(ledgers)))
        }
        try:
            answer = CapsAnswer.decode(
                (await ask(Op.META_CAPS, CapsQuestion(kind, asked).encode())).body
            )
        except DistributedLogError:
            return []
        return [
            Loot(bookie, number, kind, key)
            for number, given in answer.keys.items()
            for bookie, key in zip(asked.get(number, ()), given, strict=False)
        ]

    async def _watch_all(self, namespace: Namespace) -> None:
        """All changes of a log, for as long as they are told."""
        metadata = namespace.metadata
        while True:
            await trio.sleep(AGAIN_S)
            if not self.judge.names:
                continue
            start = b"log/%s/" % next(iter(self.judge.names)).encode()
            try:
                page = await metadata.range(start, prefix_end(start))
                async with metadata.watch(
                    start, prefix_end(start), after_revision=page.revision
                ) as watch:
                    while True:
                        await watch.next()
            except DistributedLogError:
                continue

    async def _write_own(self, namespace: Namespace, chance: Random) -> None:
        """A log of its own, as anybody would: its streams at bookies are open when its right ends."""
        while True:
            await trio.sleep(AGAIN_S)
            try:
                writer = await namespace.open_log(OWN_LOG).open_writer(takeover=True)
            except DistributedLogError:
                continue
            try:
                while True:
                    await writer.write(LogRecord(workload.txid_now(), chance.randbytes(20)))
                    await trio.sleep(chance.expovariate(3.0))
            except DistributedLogError:
                await writer.abort()

    async def _scribble(self, namespace: Namespace, chance: Random) -> None:
        """Small changes that a writer may make, most of all while that ends."""
        count = 0
        while True:
            hurry = self.simulation.now < self._hurry_until
            await trio.sleep(chance.expovariate(400.0 if hurry else 4.0))
            if not self.judge.names:
                continue
            log = int(next(iter(self.judge.names)), 16)
            count += 1
            try:
                await namespace.metadata.transact(
                    Transaction((), (Put(txn_key(log, "ex"), b"%d" % count),))
                )
            except DistributedLogError:
                await trio.sleep(0 if hurry else AGAIN_S)

    def _of_ex(self, bookie: str, machine: str, chance: Random) -> tuple[Loot, str] | None:
        """What it tries there, and how: what may harm only where its end was heard of."""
        mine = [one for one in self._loot if one.bookie == bookie]
        if not mine:
            return None
        loot = chance.choice(mine)
        if self.plan == "required" and self._is_out and self._knows(machine):
            holes = [replace(one, entry=hole) for one in mine for hole in self._holes(one, machine)]
            if holes and chance.random() < 0.5:
                return chance.choice(holes), "add"
            return loot, chance.choice(("fence", "read", "add"))
        return loot, "read"

    def _holes(self, loot: Loot, machine: str) -> list[int]:
        """What that bookie lacks of a ledger: what is planted meets nothing there (H231)."""
        if loot.kind is not CapabilityKind.RECOVER:
            return []
        holders = self.cluster.oracles.bookies.holders
        return [
            entry
            for (ledger, entry), held in holders.items()
            if ledger == loot.ledger and machine not in held
        ][:3]

    # --- who has tokens -------------------------------------------------------------------------------

    async def _visit(self, namespace: Namespace, host: Host) -> None:
        """Reads by the newest token, and shows all that it ever had."""
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
                nursery.start_soon(self._show_old, host, host.random)
            for number in range(2 * len(self.cluster.proxies)):
                nursery.start_soon(
                    read_by_tokens,
                    host,
                    self.cluster.proxied_uri,
                    self.cluster.client_config(host.name),
                    self._tokens,
                    {log: self.history, OWN_LOG: None},
                    self.simulation.chance(f"by token/{number}"),
                )
            while True:
                await trio.sleep(host.random.expovariate(2.0))
                with suppress(DistributedLogError):
                    await self._look(namespace, host.random)

    async def _show_old(self, host: Host, chance: Random) -> None:
        """A token, or a pass that came by one; and hold on to what it opened."""
        endpoint = Endpoint(host, lambda: Hello("", kind="client"))
        while True:
            await trio.sleep(chance.expovariate(2.0))
            at_bookie = bool(self._passes) and chance.random() < 0.4
            if at_bookie:
                machine = chance.choice(self.cluster.bookies)
                passport = chance.choice(self._passes[-20:])
                shows = Credentials(BY_PASS, lambda meeting, proof=passport: proof)  # type: ignore[misc]
            else:
                machine = chance.choice(self.cluster.metadata)
                token = chance.choice(self._tokens[-8:])
                shows = token_credentials(lambda shown=token: shown)  # type: ignore[misc]
            async with trio.open_nursery() as nursery:
                with suppress(DistributedLogError), trio.move_on_after(6.0):
                    address = self.cluster.address_of(machine)
                    link = await endpoint.dial(address, nursery=nursery, credentials=shows)
                    while True:
                        await self._ask_by(link, at_bookie, chance)
                        await trio.sleep(chance.expovariate(2.0))
                nursery.cancel_scope.cancel()

    async def _ask_by(self, link: ClientLink, at_bookie: bool, chance: Random) -> None:
        """Raises what ends the connection; what is only refused is asked for otherwise the next time."""

        async def ask(op: int, body: bytes) -> Reply:
            return await link.request(op, body, timeout_s=ASK_S)

        try:
            if at_bookie:
                mine = [one for one in self._loot_of_guest if one.bookie == link.peer.node_id]
                if mine:
                    await self._try(
                        BookieClient(link, link.peer.node_id), chance.choice(mine), "read"
                    )
            elif chance.random() < 0.5:
                key = state_key(int(next(iter(self.judge.names), "0"), 16))
                await ask(Op.META_READ, RangeRequest(key, None).encode())
            else:
                reply = await ask(Op.META_CAPS, CapsQuestion(CapabilityKind.LIST, {}).encode())
                self._passes.append(CapsAnswer.decode(reply.body).passport)
                self._loot_of_guest += await self._ask_capabilities(ask, chance)
                del self._loot_of_guest[:-LOOT_MAX]
        except DistributedLogError:
            if link.closed is not None:
                raise

    # --- who knows everything and has no right --------------------------------------------------------

    async def _squat(self, namespace: Namespace, host: Host) -> None:
        chance = host.random
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._use_loot, host, chance, self._of_others)
            nursery.start_soon(self._watch_all, namespace)
            deeds = (
                self._end_lease, self._take_numbers, self._compare, self._look, self._put,
                self._note_deletion, self._ask, self._found,
            )  # fmt: skip
            while True:
                await trio.sleep(chance.expovariate(12.0))
                deed = chance.choice(deeds)
                try:
                    await deed(namespace, chance)
                except DistributedLogError:
                    continue

    async def _end_lease(self, namespace: Namespace, chance: Random) -> None:
        """Another's, or one that somebody is about to be given."""
        leases = list(self.judge.leases)
        if leases:
            lease = chance.choice((chance.choice(leases), max(leases) + chance.randrange(1, 4)))
            if chance.random() < 0.3 and self.judge.leases.get(lease):
                owner = self.judge.leases[lease]
                await namespace.metadata.renew_lease(lease)
                if self.judge.leases.get(lease) == owner:
                    self._fail(f"T1: user/eve renewed lease {lease} of {owner}")
            else:
                await namespace.metadata.revoke_lease(lease)

    async def _take_numbers(self, namespace: Namespace, chance: Random) -> None:
        """The next requests of somebody else, so that his are taken for answered (H216)."""
        others = [*self.judge.clients.items()]
        if others:
            client, last = chance.choice(others)
            for number in range(last + 1, last + 4):
                said = Transact(client.rpartition("/")[2], number, NEVER, Transaction())
                await client_of(namespace).ask(Op.META_TRANSACT, encode_command(said))

    async def _compare(self, namespace: Namespace, chance: Random) -> None:
        """A condition that does not hold tells what is there (H234)."""
        for log in [*self.judge.names][:3]:
            compare = Compare.version(state_key(int(log, 16)), NEVER)
            await namespace.metadata.transact(Transaction((compare,)))

    async def _look(self, namespace: Namespace, chance: Random) -> None:
        for start in (b"log/", b"name/", b"ledger/", b"trust/", b"secret/", b"logconf/", b"audit/"):
            with suppress(NotAllowed):
                await namespace.metadata.range(start, prefix_end(start))
        for place, name in self.judge.paths()[-3:]:
            with suppress(NotAllowed):
                await namespace.metadata.get(b"name/%s\0%s" % (place.encode(), name.encode()))

    async def _put(self, namespace: Namespace, chance: Random) -> None:
        for log in [*self.judge.names][:2]:
            key = txn_key(int(log, 16), "eve")
            await namespace.metadata.transact(Transaction((), (Put(key, b"eve"),)))

    async def _note_deletion(self, namespace: Namespace, chance: Random) -> None:
        """A to-do for a ledger that nobody deletes (H213)."""
        ledgers = [*self.judge.ledgers.items()][-20:]
        if ledgers:
            number, known = chance.choice(ledgers)
            key = keys.delete_key(chance.choice(known.bookies), number)
            await namespace.metadata.transact(Transaction((), (Put(key, b""),)))

    async def _ask(self, namespace: Namespace, chance: Random) -> None:
        await self._ask_capabilities(client_of(namespace).ask, chance)

    def _some_bookie(self) -> str:
        known = next(iter(self.judge.ledgers.values()), None)
        return "none" if known is None else known.bookies[0]

    async def _found(self, namespace: Namespace, chance: Random) -> None:
        """A cluster of its own, a save of this one, another one's keys, a token for another."""
        op, body = chance.choice(
            (
                (Op.META_FORM, b""),
                (Op.META_SAVE, SaveRequest(0, 0).encode()),
                (Op.META_CAPS, GateQuestion(self._some_bookie()).encode()),
                (Op.META_TRUST, TokenRequest("root", 60).encode()),
                (Op.META_TRUST, RotateRequest("ledgers").encode()),
            )
        )
        with suppress(NotAllowed):
            await client_of(namespace).ask(op, body)
            if self.judge.now.mode == "required":
                self._fail(f"T1: user/eve was answered operation {op}")

    def _of_others(self, bookie: str, machine: str, chance: Random) -> tuple[Loot, str] | None:
        """Another's capability, or none, of a ledger to come (H230); only where rights count: else the
        first key that is shown is the ledger's."""
        if not self._checks(machine):
            return None
        theirs = [one for one in self._loot if one.bookie == bookie]
        if not theirs or chance.random() < 0.3:
            number = max(self.judge.ledgers, default=0) + chance.randrange(1, 5)
            first = chance.choice((0, *CapabilityKind))
            key = bytes((first,)) + chance.randbytes(CAPABILITY_BYTES - 1)
            return Loot(bookie, number, CapabilityKind.ADD, key), chance.choice(("fence", "add"))
        return chance.choice(theirs), chance.choice(("fence", "read"))

    def _checks(self, machine: str) -> bool:
        """Has that bookie heard that rights count?"""
        heard = self.effects.newest(machine)
        return heard is not None and heard.said.mode == "required"

    # --- a bookie's certificate, and another's keys, in wrong hands ---------------------------------------

    async def _steal(self, namespace: Namespace, host: Host) -> None:
        chance, loot = host.random, list[Loot]()

        def turned(bookie: str, machine: str, chance: Random) -> tuple[Loot, str] | None:
            """What lists is shown as what recovers."""
            mine = [one for one in loot if one.bookie == bookie]
            if not mine or not self._checks(machine):
                return None
            one = chance.choice(mine)
            kind = chance.choice((CapabilityKind.RECOVER, CapabilityKind.READ, one.kind))
            how = "fence" if kind is CapabilityKind.RECOVER else "read"
            return replace(one, key=bytes((kind,)) + one.key[1:]), how

        name = CERTIFICATES["c1"]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._use_loot, host, chance, turned)
            nursery.start_soon(self._use_loot, host, chance, partial(self._made, name), name)
            while True:
                await trio.sleep(chance.expovariate(3.0))
                try:
                    loot += await self._ask_capabilities(client_of(namespace).ask, chance)
                    del loot[:-LOOT_MAX]
                    await self._be_another(namespace, loot, chance)
                except DistributedLogError:
                    continue

    def _made(
        self, name: str, bookie: str, machine: str, chance: Random
    ) -> tuple[Loot, str] | None:
        """With the keys of the first bookie, for that name, at another one (H229)."""
        stolen, known = self._stolen, [*self.judge.ledgers][-8:]
        if stolen is None or not stolen.held or not known or machine == self.cluster.bookies[0]:
            return None
        if not self._checks(machine):
            return None
        kind, ledger = (
            chance.choice((CapabilityKind.READ, CapabilityKind.RECOVER)),
            chance.choice(known),
        )
        key = capability(stolen.held[0], kind, ledger, name, stolen.since.get(name, 0))
        how = "read" if kind is CapabilityKind.READ else chance.choice(("fence", "add"))
        return Loot(bookie, ledger, kind, key), how

    def _forged(self, name: str) -> Credentials | None:
        """A pass of that name: what passes are made with is all bookies' (a wrong name opens nothing)."""
        stolen = self._stolen
        if not name or stolen is None or not stolen.held:
            return None
        proof = issue_pass(stolen.held[0], name, stolen.since.get(name, 0))
        return Credentials(BY_PASS, lambda meeting: proof)

    async def _be_another(self, namespace: Namespace, loot: Sequence[Loot], chance: Random) -> None:
        """Ask for another bookie's keys; be told off for ledgers; take a place that nobody gives it."""
        if not loot:
            return
        one = chance.choice(loot)
        metadata = client_of(namespace)
        with suppress(NotAllowed):
            await metadata.ask(Op.META_CAPS, GateQuestion(one.bookie).encode())
        if self.plan == "required":  # what is there from before it was judged stays its own
            cookie = pack({"label": "b9", "incarnation": 1})
            move = ReplicaMove(one.bookie, 0, 1).encode()
            for puts in (
                (Put(keys.delete_key(one.bookie, one.ledger), b""),),
                (Put(keys.cookie_key("b9"), cookie), Put(keys.move_key("b9", one.ledger), move)),
            ):
                with suppress(NotAllowed):
                    await metadata.transact(Transaction((), puts))

    # --- who wants more than its share -----------------------------------------------------------------

    async def _hoard(self, namespace: Namespace, host: Host) -> None:
        await Greedy(client_of(namespace), host, self._addresses).run()

    # --- at bookies -----------------------------------------------------------------------------------

    async def _use_loot(
        self,
        host: Host,
        chance: Random,
        choose: Callable[[str, str, Random], tuple[Loot, str] | None],
        name: str = "",
    ) -> None:
        """Show bookies what was collected, over connections of its own. ``name``: by a pass with that one."""
        endpoint = Endpoint(host, lambda: Hello("", kind="client"))
        while True:
            await trio.sleep(chance.expovariate(3.0))
            machine = chance.choice(self.cluster.bookies)
            async with trio.open_nursery() as nursery:
                try:
                    with trio.move_on_after(5 * ASK_S):
                        link = await endpoint.dial(
                            self.cluster.address_of(machine),
                            nursery=nursery,
                            credentials=self._forged(name),
                        )
                        client = BookieClient(link, link.peer.node_id)
                        for _ in range(chance.randrange(1, 6)):
                            chosen = choose(link.peer.node_id, machine, chance)
                            if chosen is not None:
                                await self._try(client, *chosen)
                except DistributedLogError:
                    pass
                nursery.cancel_scope.cancel()

    async def _try(self, client: BookieClient, loot: Loot, how: str) -> None:
        """Whatever comes of it is seen on the wire."""
        try:
            if how == "fence":
                await client.fence(loot.ledger, loot.key, ASK_S)
            elif how == "read":
                await client.read(loot.ledger, loot.key, 0, 5, 1000, past_lac=True, timeout_s=ASK_S)
            else:
                over = trio.Event()
                stream = client.open_stream(
                    loot.ledger,
                    loot.key,
                    recovery=loot.kind is CapabilityKind.RECOVER,
                    fragment_epoch=0,
                    on_acked=lambda count: over.set(),
                    on_refused=lambda position, error: over.set(),
                )
                stream.send(entries.encode(loot.ledger, loot.entry, 0, -1, (b"planted",), 7))
                with trio.move_on_after(ASK_S):
                    await over.wait()
                stream.close()
        except DistributedLogError:
            if client.closed is not None:
                raise


def client_of(namespace: Namespace) -> MetadataClient:
    """Its client of the quorum."""
    assert isinstance(namespace.metadata, MetadataClient), "it knows no proxies"
    return namespace.metadata
