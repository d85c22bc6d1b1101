"""Seeds of a cluster where it counts who asks: certificates, grants, and those who have none (T1 to T4).

The same cluster, workload and faults as in `seed.py`, and every machine holds a certificate. An admin gives
rights, takes them, draws new secrets, disables a user, and in some seeds goes from open to required and
back, all while logs are written. Three others try what they must not: somebody who writes only now and then,
and keeps all that he ever got; who has no right at all, and knows everything (ids, requests, leases, others'
capabilities); and a bookie's certificate in wrong hands. What they try harms nobody where it is refused, or
is not judged.

Judged by `verify/second_judge.py`, a judge of its own, over the commands of the metadata's log and over what
bookies answer: a bookie obeys what was given out until it has heard that it ended.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any

import trio

from ..bookie import entry as entries
from ..bookie import messages
from ..bookie.client import BookieClient
from ..bookie.gate import Gate
from ..cluster.pulling import Move
from ..ledger import keys
from ..log.keys import state_key, txn_key
from ..log.namespace import Namespace
from ..metadata.client import MetadataClient
from ..metadata.commands import Transact, encode_command
from ..metadata.interface import prefix_end
from ..metadata.secrets import Secrets
from ..metadata.served_watches import ServedWatches
from ..metadata.transaction import Compare, Put, Transaction
from ..runtime.capabilities import Kind
from ..runtime.capability_messages import CapsAnswer, CapsQuestion, GateAnswer, GateQuestion
from ..runtime.errors import DistributedLogError, InvalidRequest, NotAllowed
from ..runtime.frames import Op, pack
from ..runtime.hello import Hello
from ..runtime.host import Host
from ..runtime.link import Link
from ..runtime.rpc import Endpoint
from ..verify import workload
from ..verify.checkers import Violation
from ..verify.oracles import FrameCutter
from ..verify.second_judge import SecondJudge
from .cluster import PATH, SimCluster
from .machine_state import MachineState
from .network import SimConnection
from .planting import Patch, planted
from .scheduler import Simulation
from .seed import CHAOS_S, FORMING_S, LogRun
from .stalls import machine_of_task

ADMIN, EX, EVE, THIEF = "x1", "x2", "x3", "x4"
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
}
WATCHED = {CERTIFICATES[name] for name in (EX, EVE, THIEF)}
PLANS = ("required", "required", "round", "round", "report")
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


@dataclass(frozen=True, slots=True)
class Loot:
    """A capability that somebody was given once."""

    bookie: str
    ledger: int
    kind: Kind
    key: bytes


@dataclass(frozen=True, slots=True)
class Heard:
    """What a bookie heard from the leader, and when."""

    at: float
    said: GateAnswer


@dataclass(slots=True)
class _Asked:
    kind: Kind
    ledger: int
    key: bytes
    at: float
    """When the request arrived at the bookie."""
    added_at: list[float] = field(default_factory=list)
    """Of a stream: when each of its records did."""


class Effects:
    """A `Tap`: what bookies do for those who are watched, against what they had heard by then (T1, T3)."""

    def __init__(self, simulation: Simulation, judge: SecondJudge) -> None:
        self._simulation = simulation
        self._judge = judge
        self.heard: dict[str, list[Heard]] = {}
        """By the bookie's machine, the newest last."""
        self.effects = 0
        """That were judged."""
        self._cutters: dict[tuple[int, bool], FrameCutter] = {}
        self._asked: dict[tuple[int, int], _Asked] = {}
        self._streams: dict[tuple[int, int], _Asked] = {}

    def on_heard(self, said: GateAnswer) -> None:
        """The bookie that runs now has heard that."""
        machine = machine_of_task.get()
        if machine is not None:
            found = self.heard.setdefault(machine.name, [])
            found.append(Heard(self._simulation.now, said))

    def newest(self, machine: str) -> Heard | None:
        """What that bookie heard last."""
        found = self.heard.get(machine)
        return found[-1] if found else None

    def on_arrived(self, end: SimConnection, data: bytes) -> None:
        """See `Tap`."""
        if self._is_watched(end):
            self._cutter(end, True).feed(data, partial(self._on_request, end))

    def on_sent(self, end: SimConnection, data: bytes) -> None:
        """See `Tap`."""
        if self._is_watched(end):
            self._cutter(end, False).feed(data, partial(self._on_answer, end))

    def _is_watched(self, end: SimConnection) -> bool:
        return (
            not end.dialled
            and end.identity is not None
            and end.identity.principal in WATCHED
            and end.host.name.startswith("b")
        )

    def _cutter(self, end: SimConnection, arriving: bool) -> FrameCutter:
        return self._cutters.setdefault((end.serial, arriving), FrameCutter())

    def _on_request(
        self, end: SimConnection, op: int, flags: int, status: int, ident: int, body: memoryview
    ) -> None:
        now, at = self._simulation.now, (end.serial, ident)
        if op == Op.STREAM_OPEN:
            opened = messages.StreamOpen.decode(body)
            if not opened.close:
                kind = Kind.RECOVER if opened.recovery else Kind.ADD
                self._streams[at] = _Asked(kind, opened.ledger, opened.key, now)
        elif op == Op.ADD and at in self._streams:
            self._streams[at].added_at.append(now)
        elif op == Op.READ:
            read = messages.ReadRequest.decode(body)
            kind = Kind.RECOVER if read.fence else Kind.READ
            self._asked[at] = _Asked(kind, read.ledger, read.key, now)
        elif op in (Op.FENCE, Op.READ_LAC, Op.LIST_ENTRIES):
            asked = messages.LedgerRequest.decode(body)
            kind = Kind.RECOVER if op == Op.FENCE else Kind.LIST
            self._asked[at] = _Asked(kind, asked.ledger, asked.key, now)

    def _on_answer(
        self, end: SimConnection, op: int, flags: int, status: int, ident: int, body: memoryview
    ) -> None:
        if op == Op.ADD_ACKS:
            for number, count in messages.decode_pairs(body, "ADD_ACKS"):
                stream = self._streams.get((end.serial, number))
                if stream is not None and stream.added_at:
                    at = stream.added_at[min(count, len(stream.added_at)) - 1]
                    self._judge_effect(end, replace(stream, at=at))
        elif op == Op.REPLY:
            asked = self._asked.pop((end.serial, ident), None)
            if asked is not None and not status:
                self._judge_effect(end, asked)

    def _judge_effect(self, end: SimConnection, asked: _Asked) -> None:
        assert end.identity is not None, "only who is known is watched"
        principal, bookie = end.identity.principal, end.host.name
        before = [one for one in self.heard.get(bookie, []) if one.at < asked.at]
        if not before or before[-1].said.mode != "required":
            return
        self.effects += 1
        said = before[-1].said
        what = f"{principal} did {asked.kind.name.lower()} to ledger {asked.ledger} at {bookie}"
        if asked.key[1] not in [one.number & 0xFF for one in said.held]:
            self._fail(f"{what} by what was made with generation {asked.key[1]}")
        elif len(said.held) > 2:
            self._fail(
                f"{bookie} holds {len(said.held)} generations: what is made with the oldest ends"
            )
        elif principal.startswith("bookie/"):
            if asked.kind is not Kind.LIST:
                self._fail(f"{what}, of which it has no copy")
        else:
            letter = "r" if asked.kind in (Kind.LIST, Kind.READ) else "w"
            since = said.since.get(principal, 0)
            if not self._judge.had_right(principal, asked.ledger, letter, since):
                self._fail(
                    f"{what}; it had no right to since revision {since}, which {bookie} heard of"
                )

    def _fail(self, what: str) -> None:
        self._simulation.fail(Violation(f"T3: {what}"))


class TrustedRun(LogRun):
    """One seed of it."""

    def __init__(self, seed: int, *, chaos_s: float = CHAOS_S, keep_trace: bool = False) -> None:
        super().__init__(seed, chaos_s=chaos_s, keep_trace=keep_trace)
        chance = self.simulation.chance("trust")
        self.plan = chance.choice(PLANS)
        self.shape = replace(self.shape, others=4, certificates=CERTIFICATES)
        self.judge = SecondJudge(
            lambda what: self.simulation.fail(Violation(what)), stolen={CERTIFICATES[THIEF]}
        )
        self.effects = Effects(self.simulation, self.judge)
        self.refused = 0
        """Attempts that were, of those who may not."""
        self._chance = chance
        self._set_up = trio.Event()
        self._loot: list[Loot] = []
        self._secrets: list[tuple[MachineState | None, Secrets]] = []
        self._is_out = False
        """The ex-writer was told that it may not, and was not let in again since."""
        self._let_in_at = 0
        """The revision when it was given something last."""
        self._hurry_until = 0.0
        """Something is taken from it about now: it does what it can."""

    async def _main(self, simulation: Simulation) -> None:
        with planted(self._ears()):
            await super()._main(simulation)

    def _on_cluster(self, cluster: SimCluster) -> None:
        cluster.network.taps.append(self.effects)
        cluster.oracles.on_applied.append(self.judge.on_applied)

    def _ears(self) -> Sequence[Patch]:
        """What is heard of the product from inside: when a bookie hears, who leads, who is refused."""
        begin, hear, make = Gate.__init__, Gate.hear, Secrets.__init__
        answer, end = Link.reply_error, ServedWatches.end

        def begun(gate: Gate, silence_s: float, time_s: Callable[[], float]) -> None:
            begin(gate, silence_s, time_s)
            self.effects.on_heard(
                GateAnswer("open", (), {})
            )  # and what it hears first it may not note

        def heard(gate: Gate, said: GateAnswer) -> None:
            hear(gate, said)
            self.effects.on_heard(said)

        def made(secrets: Secrets, *arguments: Any) -> None:
            make(secrets, *arguments)
            self._secrets.append((machine_of_task.get(), secrets))

        def answered(link: Link, ident: int, error: DistributedLogError, **named: int) -> None:
            self._on_refused(link.principal, error)
            answer(link, ident, error, **named)

        def ended(watches: ServedWatches, ident: int, error: DistributedLogError) -> None:
            self._on_refused(watches._link.principal, error)
            end(watches, ident, error)

        return (
            (Gate, "__init__", begun),
            (Gate, "hear", heard),
            (Secrets, "__init__", made),
            (Link, "reply_error", answered),
            (ServedWatches, "end", ended),
        )

    def _on_refused(self, principal: str, error: DistributedLogError) -> None:
        if isinstance(error, NotAllowed):
            if principal in WATCHED:
                self.refused += 1
            elif principal.startswith(
                "user/"
            ):  # a bookie may have lost a place, or a lease, meanwhile
                self.simulation.fail(Violation(f"{principal} was refused what it may: {error}"))

    # --- the workload -----------------------------------------------------------------------------

    async def _begin(self) -> None:
        cluster = self.cluster
        cluster.start_client(ADMIN, self._govern)
        with trio.fail_after(FORMING_S):
            await self._set_up.wait()
        cluster.start_client(EX, self._once_a_writer)
        cluster.start_client(EVE, self._squat)
        cluster.start_client(THIEF, self._steal)

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
            while missing := self._deaf_bookies():  # noqa: ASYNC110
                await trio.sleep(1.0)
        if deaf.cancelled_caught:
            raise Violation(f"T3: {missing} have not heard of a revocation for {DEAF_S:g} s")
        self.simulation.note("trust", self.judge.judged, self.effects.effects, self.refused)

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
        change = partial(self._change, client_of(namespace))
        if not self._set_up.is_set():
            await change("mode", "report", "root")
            for user in ("app", "reader", "ex", "eve"):
                await change("user", user)
            for user, role in (
                ("root", "owner"),
                ("app", "owner"),
                ("reader", "reader"),
                ("ex", "writer"),
            ):
                await change("grant", user, role, PATH, "")
            self._let_in_at = self.judge.revision
            if self.plan != "report":
                await change("mode", "required" if self.plan == "required" else "open", "")
            self._set_up.set()
        chance, turn = self._chance, 0
        while not self.nemesis.over:
            await trio.sleep(chance.expovariate(1.0 / ACT_S))
            act = chance.random()
            if act < 0.25:
                self._rotate()
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
                await metadata.change_trust(*change)
                return
            except InvalidRequest as error:
                self.simulation.note("done already", str(error)[:80])
                if change[0] in ("user", "revoke"):
                    return
                await trio.sleep(AGAIN_S)
            except DistributedLogError as error:
                self.simulation.note("again", change[0], type(error).__name__)
                await trio.sleep(AGAIN_S)

    def _rotate(self) -> None:
        """What `dlog trust rotate` asks the leader for."""
        for machine, secrets in self._secrets:
            if machine is not None and machine.running and not machine.stalled:
                context = copy_context()
                context.run(machine_of_task.set, machine)
                if secrets._replica.leads and self._is_alive(machine, secrets):
                    self.simulation.note("rotate", machine.name)
                    context.run(secrets.rotate, lambda error: None)

    def _is_alive(self, machine: MachineState, secrets: Secrets) -> bool:
        """Is it the newest of its machine?"""
        return [one for of, one in self._secrets if of is machine][-1] is secrets

    # --- who writes now and then --------------------------------------------------------------------

    async def _once_a_writer(self, namespace: Namespace, host: Host) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._collect, namespace, host.random)
            nursery.start_soon(self._watch_all, namespace, "user/ex")
            nursery.start_soon(self._use_loot, host, host.random, self._of_ex)
            for _ in range(3):
                nursery.start_soon(self._scribble, namespace, host.random)

    async def _collect(self, namespace: Namespace, chance: Random) -> None:
        """Keep every capability that is given."""
        while True:
            await trio.sleep(chance.expovariate(5.0))
            await self._ask_capabilities(namespace, "user/ex", chance)

    async def _ask_capabilities(
        self, namespace: Namespace, principal: str, chance: Random
    ) -> list[Loot]:
        ledgers = [*self.judge.ledgers.items()][-8:]
        kind = chance.choice(list(Kind))
        asked = {
            number: known.bookies for number, known in chance.sample(ledgers, min(3, len(ledgers)))
        }
        before, loot = self.judge.revision, []
        try:
            reply = await client_of(namespace).ask(Op.META_CAPS, CapsQuestion(kind, asked).encode())
        except DistributedLogError:
            return []
        answer = CapsAnswer.decode(reply.body)
        for number, given in answer.keys.items():
            letter = "r" if kind in (Kind.LIST, Kind.READ) else "w"
            if given and principal.startswith("user/"):
                self._may_be_given(principal, number, letter, before)
            loot += [
                Loot(bookie, number, kind, key)
                for bookie, key in zip(asked.get(number, ()), given, strict=False)
            ]
        if principal == "user/ex":
            self._loot += loot
            del self._loot[
                LOOT_MAX:-LOOT_MAX
            ]  # the oldest are those that time may have forgotten to end
        return loot

    def _may_be_given(self, principal: str, ledger: int, letter: str, before: int) -> None:
        """Was there a moment between the question and now when it might be answered so?"""
        judge = self.judge
        if all(one.mode == "required" for one in judge.since(before)) and not judge.had_right(
            principal, ledger, letter, judge.at(before).revision
        ):
            self.simulation.fail(Violation(f"T4: {principal} was given a capability of {ledger}"))

    async def _watch_all(self, namespace: Namespace, principal: str) -> None:
        """All changes of a log, for as long as they are told."""
        judge = self.judge
        while True:
            await trio.sleep(AGAIN_S)
            if not judge.names:
                continue
            start = b"log/%s/" % next(iter(judge.names)).encode()
            try:
                before = judge.revision
                page = await namespace.metadata.range(start, prefix_end(start))
                for item in page.items:
                    self._may_have_read(principal, item.key, before)
                async with namespace.metadata.watch(
                    start, prefix_end(start), after_revision=page.revision
                ) as watch:
                    while True:
                        for event in (await watch.next()).events:
                            self._may_be_told(principal, event.item.key, event.item.mod_revision)
            except DistributedLogError:
                continue

    def _may_be_told(self, principal: str, key: bytes, revision: int) -> None:
        """At that revision; or when it was told of it, later: who is let in again hears what it missed."""
        judge = self.judge
        if not any(
            one.mode != "required" or judge.may_read(one, principal, key)
            for one in judge.since(revision)
        ):
            self.simulation.fail(
                Violation(f"T3: a watch of {principal} told of {key!r} at revision {revision}")
            )

    def _may_have_read(self, principal: str, key: bytes, before: int) -> None:
        """Was there a moment since the question when it might have read this?"""
        judge = self.judge
        if not any(
            one.mode != "required" or judge.may_read(one, principal, key)
            for one in judge.since(before)
        ):
            self.simulation.fail(Violation(f"T4: {principal} was shown {key!r}"))

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
            return loot, chance.choice(("fence", "read", "add"))
        return loot, "read"

    # --- who knows everything and has no right --------------------------------------------------------

    async def _squat(self, namespace: Namespace, host: Host) -> None:
        chance = host.random
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._use_loot, host, chance, self._of_others)
            nursery.start_soon(self._watch_all, namespace, "user/eve")
            deeds = (
                self._end_lease, self._take_numbers, self._compare, self._look, self._put,
                self._note_deletion, self._ask,
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
                    self.simulation.fail(
                        Violation(f"T1: user/eve renewed lease {lease} of {owner}")
                    )
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
            key = state_key(int(log, 16))
            before = self.judge.revision
            reply = await namespace.metadata.transact(Transaction((Compare.version(key, NEVER),)))
            if any(reply.current):
                self._may_have_read("user/eve", key, before)

    async def _look(self, namespace: Namespace, chance: Random) -> None:
        before = self.judge.revision
        for start in (b"log/", b"name/", b"ledger/", b"trust/", b"secret/", b"logconf/"):
            try:
                page = await namespace.metadata.range(start, prefix_end(start))
            except NotAllowed:
                continue
            for item in page.items:
                if item.key.startswith(b"secret/"):
                    self.simulation.fail(Violation("T4: user/eve was shown a secret"))
                self._may_have_read("user/eve", item.key, before)

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
        await self._ask_capabilities(namespace, "user/eve", chance)

    def _of_others(self, bookie: str, machine: str, chance: Random) -> tuple[Loot, str] | None:
        """Another's capability; only where rights count: else the first key that is shown is the ledger's."""
        heard = self.effects.newest(machine)
        theirs = [one for one in self._loot if one.bookie == bookie]
        if not theirs or heard is None or heard.said.mode != "required":
            return None
        return chance.choice(theirs), chance.choice(("fence", "read"))

    # --- a bookie's certificate in wrong hands ----------------------------------------------------------

    async def _steal(self, namespace: Namespace, host: Host) -> None:
        chance, loot = host.random, list[Loot]()

        def turned(bookie: str, machine: str, chance: Random) -> tuple[Loot, str] | None:
            """What lists is shown as what recovers."""
            mine = [one for one in loot if one.bookie == bookie]
            heard = self.effects.newest(machine)
            if not mine or heard is None or heard.said.mode != "required":
                return None
            one = chance.choice(mine)
            kind = chance.choice((Kind.RECOVER, Kind.READ, one.kind))
            how = "fence" if kind is Kind.RECOVER else "read"
            return replace(one, key=bytes((kind,)) + one.key[1:]), how

        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._use_loot, host, chance, turned)
            while True:
                await trio.sleep(chance.expovariate(3.0))
                try:
                    loot += await self._ask_capabilities(namespace, "bookie/b9", chance)
                    del loot[:-LOOT_MAX]
                    await self._be_another(namespace, loot, chance)
                except DistributedLogError:
                    continue

    async def _be_another(self, namespace: Namespace, loot: Sequence[Loot], chance: Random) -> None:
        """Ask for another bookie's keys; be told off for ledgers; take a place that nobody gives it."""
        if not loot:
            return
        one = chance.choice(loot)
        metadata = client_of(namespace)
        with suppress(NotAllowed):
            await metadata.ask(Op.META_CAPS, GateQuestion(one.bookie).encode())
            self.simulation.fail(Violation(f"T1: bookie/b9 was given the keys of {one.bookie}"))
        if self.plan == "required":  # what is there from before it was judged stays its own
            cookie = pack({"label": "b9", "incarnation": 1})
            move = Move(one.bookie, 0, 1).encode()
            for puts in (
                (Put(keys.delete_key(one.bookie, one.ledger), b""),),
                (Put(keys.cookie_key("b9"), cookie), Put(keys.move_key("b9", one.ledger), move)),
            ):
                with suppress(NotAllowed):
                    await metadata.transact(Transaction((), puts))

    # --- at bookies -----------------------------------------------------------------------------------

    async def _use_loot(
        self,
        host: Host,
        chance: Random,
        choose: Callable[[str, str, Random], tuple[Loot, str] | None],
    ) -> None:
        """Show bookies what was collected, over connections of its own."""
        endpoint = Endpoint(host, lambda: Hello("", kind="client"))
        while True:
            await trio.sleep(chance.expovariate(3.0))
            machine = chance.choice(self.cluster.bookies)
            async with trio.open_nursery() as nursery:
                try:
                    with trio.move_on_after(5 * ASK_S):
                        link = await endpoint.dial(
                            self.cluster.address_of(machine), nursery=nursery
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
                    recovery=loot.kind is Kind.RECOVER,
                    fragment_epoch=0,
                    on_acked=lambda count: over.set(),
                    on_refused=lambda position, error: over.set(),
                )
                stream.send(entries.encode(loot.ledger, 0, 0, -1, (b"planted",), 7))
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
