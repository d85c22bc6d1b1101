"""What a bookie lets whom do with which ledger: modes, what was taken away, and who tries it all the same."""

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
import trio
from trio.testing import MockClock

from distributedlog.bookie.client.bookie_client import AddStream, BookieClient, LongPollResponse
from distributedlog.bookie.format import bookie_messages as m
from distributedlog.bookie.server import serve_bookie_protocol
from distributedlog.bookie.session import bookie_authorizer as gate_module
from distributedlog.bookie.session.bookie_authorizer import BookieAuthorizer
from distributedlog.bookie.store.bookie_store import BookieStore
from distributedlog.bookie.store.startup import open_store
from distributedlog.runtime.disk.memory_disk import MemoryDisk
from distributedlog.runtime.interfaces.errors import (
    CapabilityOutdated,
    DistributedLogError,
    NotAuthenticated,
    RequestTimeout,
    WrongLedgerKey,
)
from distributedlog.runtime.interfaces.principals import Credentials
from distributedlog.runtime.net.rpc import Endpoint
from distributedlog.runtime.protocol.capabilities import (
    CapabilityKind,
    Generation,
    is_capability,
    issue_session_credential,
    make_capability,
)
from distributedlog.runtime.protocol.capability_messages import BookieKeysReply
from distributedlog.runtime.protocol.handshake import Hello
from distributedlog.runtime.protocol.tokens import CLOCK_TOLERANCE_S
from tests.runtime.pipe import PipeNetwork

from ..kit import KEY, OPTIONS, Adder, CutDisk, record, running

T = 5.0
SILENCE_S = 600.0
ENDED, OLD, NEW = (Generation(n, b"%32d" % n, b"p%31d" % n) for n in (1, 2, 3))
TAKEN_AT = 50
"""The revision at which something was taken from ``user/ex``."""
BOUNDS: dict[str, int] = {"user/ex": TAKEN_AT}
EVERYBODY = ("user/a", "user/r", "user/ex", "user/none", "bookie/b2")


class Bookie:
    """A served store with a gate that is told what the test says."""

    def __init__(
        self,
        store: BookieStore,
        gate: BookieAuthorizer,
        network: PipeNetwork,
        nursery: trio.Nursery,
    ) -> None:
        self.store = store
        self.gate = gate
        self._network = network
        self._nursery = nursery
        self.address = ("b1", 3181)

    def say(self, mode: str, *held: Generation, since: dict[str, int] | None = None) -> None:
        mine = tuple(one.for_bookie("c1", "b1") for one in held)
        self.gate.apply_reply(BookieKeysReply(mode, mine, dict(BOUNDS if since is None else since)))

    async def dial(
        self, principal: str, *, since: int | None = None, ends_s: int = 0
    ) -> BookieClient:
        """Connected with that principal's newest pass."""
        bound = BOUNDS.get(principal, 0) if since is None else since
        proof = issue_session_credential(NEW, principal, bound, ends_s)
        return await self._dial(Credentials("pass", lambda meeting: proof))

    async def dial_as_nobody(self) -> BookieClient:
        return await self._dial(None)

    async def _dial(self, credentials: Credentials | None) -> BookieClient:
        endpoint = Endpoint(self._network.host("client"), lambda: Hello("c1", "", "client"))
        link = await endpoint.dial(self.address, nursery=self._nursery, credentials=credentials)
        return BookieClient(link, "b1")

    async def fingerprint(self) -> object:
        """All that is promised here."""
        states = [state async for page in self.store.ledgers.state_pages() for state in page]
        stats = self.store.stats
        ends = [
            one.last_entry for state in states if (one := self.store.ledgers.get(state.ledger_id))
        ]
        return states, ends, stats.entries, stats.fences, self.store.ledgers.known_count


@asynccontextmanager
async def served() -> AsyncIterator[Bookie]:
    network = PipeNetwork(5)
    disk = MemoryDisk()
    host = network.host("b1", journal=disk, index=disk)
    store = await open_store(host, OPTIONS, bookie_id="b1")
    listener = await host.listen(("b1", 3181))
    endpoint = Endpoint(host, lambda: Hello("c1", "b1", "bookie"))
    gate = BookieAuthorizer(SILENCE_S, trio.current_time)
    endpoint.methods["pass"] = lambda meeting, proof: gate.authenticate(proof)
    with trio.fail_after(1000):
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)

            async def serve(task_status: trio.TaskStatus[None]) -> None:
                await serve_bookie_protocol(
                    endpoint, {"": listener}, store, authorizer=gate, task_status=task_status
                )

            await nursery.start(serve)
            yield Bookie(store, gate, network, nursery)
            nursery.cancel_scope.cancel()


def cap(
    kind: CapabilityKind,
    ledger: int,
    principal: str,
    *,
    of: Generation = NEW,
    since: int = 0,
    at: str = "b1",
) -> bytes:
    return make_capability(of.for_bookie("c1", at), kind, ledger, principal, since)


async def add(
    client: BookieClient, ledger: int, key: bytes, entry: int, *, recovery: bool = False
) -> None:
    """One entry, until it is acknowledged. Raises why it is not."""
    over = trio.Event()
    refused: list[DistributedLogError] = []

    def on_refused(position: int, error: DistributedLogError) -> None:
        refused.append(error)
        over.set()

    stream = client.open_stream(
        ledger,
        key,
        recovery=recovery,
        fragment_epoch=0,
        on_acked=lambda count: over.set(),
        on_refused=on_refused,
    )
    stream.send(record(ledger, entry))
    with trio.move_on_after(T):
        await over.wait()
    stream.close()
    if refused:
        raise refused[0]
    if not over.is_set():
        raise RequestTimeout("no answer")


async def wait_lac(client: BookieClient, ledger: int, key: bytes) -> None:
    """A long poll of one millisecond. Raises what it was refused with."""
    over = trio.Event()
    answers: list[LongPollResponse | DistributedLogError] = []

    def on_answer(answer: LongPollResponse | DistributedLogError, more: bool) -> None:
        answers.append(answer)
        over.set()

    client.long_poll_lac(m.WaitLacRequest(ledger, key, 5, 1, 1 << 20), on_answer, persistent=False)
    await over.wait()
    if isinstance(answers[0], DistributedLogError):
        raise answers[0]


ATTEMPTS: dict[str, CapabilityKind] = {
    "list": CapabilityKind.LIST,
    "lac": CapabilityKind.LIST,
    "read": CapabilityKind.READ,
    "wait": CapabilityKind.READ,
    "add": CapabilityKind.ADD,
    "recovery add": CapabilityKind.RECOVER,
    "fence": CapabilityKind.RECOVER,
    "fencing read": CapabilityKind.RECOVER,
}


async def attempt(what: str, client: BookieClient, ledger: int, key: bytes, entry: int) -> None:
    if what == "list":
        await client.list_entries(ledger, key, T)
    elif what == "lac":
        await client.read_lac(ledger, key, T)
    elif what in ("read", "fencing read"):
        fence = what == "fencing read"
        await client.read(ledger, key, 0, 9, 1 << 20, fence=fence, past_lac=True, timeout_s=T)
    elif what == "wait":
        await wait_lac(client, ledger, key)
    elif what == "fence":
        await client.fence(ledger, key, T)
    else:
        await add(client, ledger, key, entry, recovery=what == "recovery add")


@dataclass(frozen=True)
class Shown:
    """Bytes that somebody has, and what they are good for."""

    principal: str
    ledger: int
    key: bytes
    good_for: frozenset[CapabilityKind]


def arsenal() -> list[Shown]:
    """What each actor has: its own, others', of before, of another bookie, made up."""
    read = frozenset({CapabilityKind.LIST, CapabilityKind.READ})
    every = [kind for kind in CapabilityKind]
    mine = [
        Shown("user/a", 7, cap(CapabilityKind.ADD, 7, "user/a"), frozenset({CapabilityKind.ADD})),
        Shown(
            "user/a", 7, cap(CapabilityKind.RECOVER, 7, "user/a"), read | {CapabilityKind.RECOVER}
        ),
        Shown(
            "user/a",
            7,
            cap(CapabilityKind.ADD, 7, "user/a", of=OLD),
            frozenset({CapabilityKind.ADD}),
        ),
        Shown("user/r", 7, cap(CapabilityKind.READ, 7, "user/r"), read),
        Shown("user/r", 7, cap(CapabilityKind.LIST, 7, "user/r"), frozenset({CapabilityKind.LIST})),
        Shown("user/ex", 7, cap(CapabilityKind.READ, 7, "user/ex", since=TAKEN_AT), read),
    ]
    none: frozenset[CapabilityKind] = frozenset()
    useless = [
        # The ex-writer's, from before something was taken from it; and of a generation that has ended.
        *(Shown("user/ex", 7, cap(kind, 7, "user/ex"), none) for kind in every),
        *(Shown("user/a", 7, cap(kind, 7, "user/a", of=ENDED), none) for kind in every),
        # Those that others had, overheard.
        *(Shown("user/none", 7, cap(kind, 7, "user/a"), none) for kind in every),
        # Of another ledger, an old one and one to come: squatting.
        *(
            Shown("user/a", ledger, cap(kind, 7, "user/a"), none)
            for kind in every
            for ledger in (8, 9000)
        ),
        # The stolen bookie b2 makes what it likes with all that it holds.
        *(Shown("bookie/b2", 7, cap(kind, 7, "bookie/b2", at="b2"), none) for kind in every),
        *(
            Shown("user/none", ledger, key, none)
            for ledger in (7, 9001)
            for key in (KEY, bytes(16), b"x" * 16)
        ),
        *(Shown("user/none", 9002, bytes((kind, 3)) + b"y" * 14, none) for kind in every),
    ]
    return mine + useless


async def actors(seed: int, count: int) -> None:
    """All of them try all that there is, in any order; what has no grant changes and shows nothing."""
    chance = random.Random(seed)
    async with served() as bookie:
        bookie.say("open")
        owner = await bookie.dial_as_nobody()
        for ledger in (7, 8):  # of the time when the cluster was open
            for entry in range(3):
                await add(owner, ledger, KEY, entry)
        bookie.say("required", NEW, OLD)
        clients = {name: await bookie.dial(name) for name in EVERYBODY}
        tries = [(shown, what) for shown in arsenal() for what in ATTEMPTS]
        chance.shuffle(tries)
        for entry, (shown, what) in enumerate(tries[:count], 10):
            before = await bookie.fingerprint()
            refused = False
            try:
                await attempt(what, clients[shown.principal], shown.ledger, shown.key, entry)
            except CapabilityOutdated:
                refused = True
            except DistributedLogError:
                pass  # it was let in: what the ledger says to it is another matter
            if ATTEMPTS[what] in shown.good_for:
                assert not refused, f"{shown.principal} may {what}"
            else:
                assert refused, f"{shown.principal} was let in to {what} ledger {shown.ledger}"
                assert await bookie.fingerprint() == before, f"{shown.principal}: {what}"


async def test_nothing_changes_and_nothing_is_shown_without_a_grant(
    autojump_clock: MockClock,
) -> None:
    """H229, H230, H231: ex-writer, eavesdropper, squatter, stolen bookie, a reader that wants to fence."""
    await actors(1, 1000)


def without_principal(
    shown: bytes,
    held: tuple[Generation, ...],
    wanted: CapabilityKind,
    ledger: int,
    principal: str,
    since: int,
) -> bool:
    return any(is_capability(shown, held, wanted, ledger, one, since) for one in EVERYBODY)


def without_kind(
    shown: bytes,
    held: tuple[Generation, ...],
    wanted: CapabilityKind,
    ledger: int,
    principal: str,
    since: int,
) -> bool:
    return any(
        is_capability(shown, held, kind, ledger, principal, since) for kind in CapabilityKind
    )


def for_ever(
    shown: bytes,
    held: tuple[Generation, ...],
    wanted: CapabilityKind,
    ledger: int,
    principal: str,
    since: int,
) -> bool:
    more = (*held, ENDED.for_bookie("c1", "b1"))
    return is_capability(shown, more, wanted, ledger, principal, since)


def whatever_was_taken(
    shown: bytes,
    held: tuple[Generation, ...],
    wanted: CapabilityKind,
    ledger: int,
    principal: str,
    since: int,
) -> bool:
    return any(is_capability(shown, held, wanted, ledger, principal, at) for at in (0, since))


@pytest.mark.parametrize("planted", [without_principal, without_kind, for_ever, whatever_was_taken])
async def test_the_actors_find_what_is_planted(
    planted: Callable[..., bool], autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate_module, "is_capability", planted)

    with pytest.raises(BaseExceptionGroup) as failed:
        await actors(1, 1000)
    assert failed.group_contains(AssertionError, match="was let in")


async def test_report_goes_by_stored_keys_and_counts_who_has_nothing_better(
    autojump_clock: MockClock,
) -> None:
    async with served() as bookie:
        bookie.say("report", NEW)
        old, new = await bookie.dial_as_nobody(), await bookie.dial("user/a")

        await add(old, 7, KEY, 0)
        await add(new, 7, cap(CapabilityKind.ADD, 7, "user/a"), 1)
        await add(new, 8, cap(CapabilityKind.ADD, 8, "user/a"), 0)
        assert (bookie.gate.report_denials, bookie.gate.denials) == (1, 0)

        bookie.say(
            "open", NEW
        )  # back again: who learned the ledger by a capability takes the stored key
        await add(old, 8, KEY, 1)
        await add(old, 7, KEY, 2)
        assert (await old.list_entries(8, KEY, T)).ranges == [(0, 2)]
        assert bookie.gate.report_denials == 1


@pytest.mark.parametrize("before", ["never heard of anything", "reports, by older secrets"])
async def test_who_heard_of_a_mode_before_the_bookie_locks_no_ledger(
    before: str, autojump_clock: MockClock
) -> None:
    """Its capability is no stored key: it was taken for one, and all others got `WrongLedgerKey`."""
    async with served() as bookie:
        if before != "never heard of anything":
            bookie.say("report", OLD)
        nobody = await bookie.dial_as_nobody()
        await add(nobody, 7, KEY, 0)

        # Clients that the leader has told of the mode and of newer secrets, on old links and new ledgers.
        await add(nobody, 7, cap(CapabilityKind.ADD, 7, "user/a"), 1)
        await add(nobody, 8, cap(CapabilityKind.ADD, 8, "user/a"), 0)
        for ledger, kind in (
            (7, CapabilityKind.READ),
            (8, CapabilityKind.READ),
            (8, CapabilityKind.RECOVER),
        ):
            key = cap(kind, ledger, "user/r")
            assert (await nobody.list_entries(ledger, key, T)).ranges == [(0, 9 - ledger)]
        with pytest.raises(WrongLedgerKey):  # what is no capability is compared as ever
            await add(nobody, 7, b"another one's   ", 2)

        bookie.say("required", NEW, OLD)
        mine = await bookie.dial("user/a")
        await add(mine, 8, cap(CapabilityKind.ADD, 8, "user/a"), 1)
        bookie.say("open", NEW)
        await add(nobody, 8, KEY, 2)
        await add(nobody, 7, KEY, 2)


async def test_a_ledger_that_was_locked_by_a_capability_is_open_after_a_start(
    autojump_clock: MockClock,
) -> None:
    """Bookies of before took it for a key, and stored it."""
    disk = CutDisk()
    async with running(disk) as store:
        adder = Adder(store, 7, key=cap(CapabilityKind.ADD, 7, "user/a"))
        adder.send(record(7, 0))
        await adder.all_acked()
    for entry in (1, 2):  # out of the journal, and out of the index
        async with running(disk) as store:
            adder = Adder(store, 7)
            adder.send(record(7, entry))
            await adder.all_acked()
            await store.checkpoint()


async def test_what_is_open_ends_when_the_mode_or_what_was_taken_says_so(
    autojump_clock: MockClock,
) -> None:
    """A stream is refused at what it has not been acknowledged; a long poll is answered."""
    async with served() as bookie:
        bookie.say("report", NEW, since={})
        old, ex = await bookie.dial_as_nobody(), await bookie.dial("user/ex", since=0)
        refused: list[tuple[str, int, type]] = []
        acked: list[int] = []

        def stream(who: str, client: BookieClient, ledger: int, key: bytes) -> None:
            client.open_stream(
                ledger,
                key,
                recovery=False,
                fragment_epoch=0,
                on_acked=acked.append,
                on_refused=lambda position, error: refused.append((who, position, type(error))),
            ).send(record(ledger, 0))

        polls: list[LongPollResponse | DistributedLogError] = []
        stream("old", old, 7, KEY)
        stream("ex", ex, 8, cap(CapabilityKind.ADD, 8, "user/ex"))
        request = m.WaitLacRequest(8, cap(CapabilityKind.READ, 8, "user/ex"), 0, 50_000, 100)
        ex.long_poll_lac(request, lambda answer, more: polls.append(answer), persistent=True)
        await trio.sleep(1)
        assert (acked, refused, polls) == ([1, 1], [], [])

        bookie.say("required", NEW, since={})
        await trio.sleep(1)
        assert refused == [("old", 1, CapabilityOutdated)]

        bookie.say("required", NEW)
        await trio.sleep(1)
        assert refused[1:] == [("ex", 1, CapabilityOutdated)]
        assert [type(one) for one in polls] == [CapabilityOutdated]
        with pytest.raises(NotAuthenticated):
            await bookie.dial("user/ex", since=0)


async def test_who_copies_goes_on_when_something_was_taken_from_somebody_else(
    autojump_clock: MockClock,
) -> None:
    """A recovery's stream is looked at again by what it was let in with."""
    async with served() as bookie:
        bookie.say("required", NEW)
        client = await bookie.dial("user/a")
        refused: list[DistributedLogError] = []
        acked: list[int] = []
        stream = client.open_stream(
            7,
            cap(CapabilityKind.RECOVER, 7, "user/a"),
            recovery=True,
            fragment_epoch=0,
            on_acked=acked.append,
            on_refused=lambda position, error: refused.append(error),
        )
        stream.send(record(7, 0))
        await trio.sleep(1)
        bookie.say("required", NEW, since={**BOUNDS, "user/none": 60})
        await trio.sleep(1)
        stream.send(record(7, 1))
        await trio.sleep(1)
        assert (acked, refused) == ([1, 2], [])


async def test_a_bookie_that_is_cut_off_serves_nodes_alone_in_the_end(
    autojump_clock: MockClock,
) -> None:
    """H241: what was taken while it heard nothing ends there, too; a word of the leader opens it again."""
    async with served() as bookie:
        bookie.say("required", NEW)
        user, node = await bookie.dial("user/a"), await bookie.dial("bookie/b2")
        of_user, of_node = (cap(CapabilityKind.LIST, 7, who) for who in ("user/a", "bookie/b2"))
        await add(user, 7, cap(CapabilityKind.ADD, 7, "user/a"), 0)

        await trio.sleep(SILENCE_S - 20)
        await user.read_lac(7, of_user, T)
        await trio.sleep(21)
        with pytest.raises(CapabilityOutdated):
            await user.read_lac(7, of_user, T)
        await node.read_lac(7, of_node, T)
        assert bookie.gate.refresh_wanted.is_set()

        bookie.say("required", NEW)
        await user.read_lac(7, of_user, T)


async def test_what_was_let_in_before_a_bookie_was_cut_off_ends_with_the_rest(
    autojump_clock: MockClock,
) -> None:
    """H241: a stream is judged when it opens, and a silence changes nothing that anybody tells of."""
    async with served() as bookie:
        bookie.say("required", NEW)
        user, node = await bookie.dial("user/a"), await bookie.dial("bookie/b2")
        acked: dict[str, int] = {}
        refused: list[str] = []

        def open_stream(client: BookieClient, who: str, ledger: int) -> AddStream:
            return client.open_stream(
                ledger,
                cap(CapabilityKind.ADD, ledger, who),
                recovery=False,
                fragment_epoch=0,
                on_acked=lambda count: acked.update({who: count}),
                on_refused=lambda position, error: refused.append(f"{who}: {type(error).__name__}"),
            )

        of_user, of_node = open_stream(user, "user/a", 7), open_stream(node, "bookie/b2", 8)
        of_user.send(record(7, 0))
        of_node.send(record(8, 0))
        await trio.sleep(SILENCE_S - 20)
        bookie.gate.check_silence()
        of_user.send(record(7, 1))
        await trio.sleep(21)
        bookie.gate.check_silence()
        of_user.send(record(7, 2))
        of_node.send(record(8, 1))
        await trio.sleep(1)

        assert refused == ["user/a: CapabilityOutdated"]
        assert acked == {"user/a": 2, "bookie/b2": 2}
        bookie.say("required", NEW)
        await add(user, 7, cap(CapabilityKind.ADD, 7, "user/a"), 2)


async def test_a_capability_is_good_for_as_long_as_the_token_that_its_holder_came_by(
    autojump_clock: MockClock,
) -> None:
    """Threat 5: it has no clock of its own; the pass has, and so the connection that it is good on."""
    async with served() as bookie:
        bookie.say("required", NEW)
        ends_s = int(trio.current_time()) + 60
        etl = await bookie.dial("user/a", ends_s=ends_s)
        key = cap(CapabilityKind.ADD, 7, "user/a")
        await add(etl, 7, key, 0)
        await trio.sleep(60 + CLOCK_TOLERANCE_S - 5)
        await add(etl, 7, key, 1)

        await trio.sleep(10)
        assert etl.link.closed is not None
        with pytest.raises(NotAuthenticated, match="has ended"):
            await bookie.dial("user/a", ends_s=ends_s)
        nobody = await bookie.dial_as_nobody()
        with pytest.raises(CapabilityOutdated):
            await add(nobody, 7, key, 2)


async def test_without_keys_a_bookie_that_is_to_check_lets_nobody_in(
    autojump_clock: MockClock,
) -> None:
    """It has no certificate of its name: the leader gives it nothing to check by."""
    async with served() as bookie:
        bookie.say("required")
        client = await bookie.dial_as_nobody()

        for key in (KEY, cap(CapabilityKind.LIST, 7, "anonymous")):
            with pytest.raises(CapabilityOutdated):
                await client.list_entries(7, key, T)
