"""Capabilities in place of stored keys, over real bookies: no call fails, and what ends, ends."""

from functools import partial

import pytest
import trio
from trio.testing import MockClock

from distributedlog.ledger.ledger_client import LedgerClient
from distributedlog.ledger.placement.bookie_pool import CREDENTIAL_TIMEOUT_S
from distributedlog.ledger.write.ledger_writer import LedgerWriter
from distributedlog.metadata.auth.capability_issuer import CapabilityIssuer
from distributedlog.metadata.auth.quorum_secrets import GENERATIONS_KEY, encode_generations
from distributedlog.metadata.model.acl_records import MODE_KEY, encode_mode, revoked_key
from distributedlog.metadata.model.transaction import Put
from distributedlog.runtime.interfaces.errors import (
    CapabilityOutdated,
    DistributedLogError,
    NotAllowed,
    QuorumUnreachable,
)
from distributedlog.runtime.protocol.capabilities import CapabilityKind, Generation
from distributedlog.runtime.protocol.capability_messages import (
    BookieKeysReply,
    BookieKeysRequest,
    decode_request,
)

from .test_real_bookies import RealCluster, confirmed, real_cluster


class TrustedCluster(RealCluster):
    """The leader's desk is here; bookies are told what it says when `tell` is called."""

    def __init__(self, nursery: trio.Nursery) -> None:
        super().__init__(nursery)
        self.rights: dict[str, set[CapabilityKind]] = {}
        self.questions = 0
        self.answer_s = 0.01
        self.away = 0
        """So many questions find no leader."""
        self._drawn: list[Generation] = []
        self._desk = CapabilityIssuer(
            "c1",
            lambda principal, token, kind, ledger, bookies: kind in self.rights.get(principal, ()),
            lambda principal, bookie: principal == f"bookie/{bookie}",
        )

    async def ask(self, principal: str, question: bytes) -> memoryview:
        self.questions += 1
        await trio.sleep(self.answer_s)
        if self.away:
            self.away -= 1
            raise QuorumUnreachable("nobody leads just now")
        return memoryview(self._desk.answer(self.store.state, decode_request(question), principal))

    async def rotate(self) -> None:
        number = len(self._drawn) + 1
        self._drawn.append(Generation(number, b"k%31d" % number, b"p%31d" % number))
        newest = tuple(reversed(self._drawn[-2:]))
        await self.put(Put(GENERATIONS_KEY, encode_generations(newest)))

    async def set_mode(self, mode: str) -> None:
        if not self._drawn:
            await self.rotate()
        await self.put(Put(MODE_KEY, encode_mode(mode)))

    async def take_from(self, principal: str, *kinds: CapabilityKind) -> None:
        self.rights[principal] -= set(kinds)
        await self.put(Put(revoked_key(principal), b""))

    async def start(self, bookie_id: str, port: int = 0) -> None:
        await super().start(bookie_id, port)
        self.nursery.start_soon(self._keep, bookie_id)

    async def _keep(self, bookie_id: str) -> None:
        """As `cluster/auth/authorizer_feed.py`: who shows what a bookie does not know makes it ask."""
        gate = self.gates[bookie_id]
        while True:
            await gate.refresh_wanted.wait()
            if self._drawn:
                self.tell(bookie_id)
            await trio.sleep(1)
            gate.refresh_wanted = trio.Event()

    def tell(self, *bookies: str) -> None:
        for bookie in bookies or tuple(self.gates):
            body = self._desk.answer(
                self.store.state, BookieKeysRequest(bookie), f"bookie/{bookie}"
            )
            self.gates[bookie].apply_reply(BookieKeysReply.decode(body))


trusted_cluster = partial(real_cluster, made=TrustedCluster)
EVERY = set(CapabilityKind)


async def write(writer: LedgerWriter, count: int = 5) -> None:
    for _ in range(count):
        writer.add([b"x"], 1)
    await confirmed(writer)


async def read_all(client: LedgerClient, writer: LedgerWriter) -> int:
    reader = await client.open(writer.ledger_id)
    try:
        return len(await reader.read(0, reader.lac, bytes_max=1 << 20))
    finally:
        reader.close()


async def test_an_open_cluster_asks_for_nothing_and_looks_at_nothing(
    autojump_clock: MockClock,
) -> None:
    async with trusted_cluster() as cluster:
        assert isinstance(cluster, TrustedCluster)
        client = await cluster.client(principal="user/a")
        writer = await client.create()
        await write(writer)

        assert await read_all(client, writer) >= 4
        assert cluster.questions == 0
        assert not any(gate.enforcing for gate in cluster.gates.values())


async def test_from_open_to_required_and_back_a_writer_and_its_readers_meet_no_error(
    autojump_clock: MockClock,
) -> None:
    """And ledgers of before, which have a stored key at bookies, are read and recovered by capabilities."""
    async with trusted_cluster() as cluster:
        assert isinstance(cluster, TrustedCluster)
        cluster.rights["user/a"] = EVERY
        client = await cluster.client(principal="user/a")
        writer, left = await client.create(), await client.create()
        await write(writer)
        await write(left)

        for mode in ("report", "required"):
            await cluster.set_mode(mode)
            for bookie in ("b2", "b0", "b1"):  # they hear of it one after the other
                cluster.tell(bookie)
                await write(writer)
                await trio.sleep(0.3)
            await write(writer)
        assert await read_all(client, left) >= 4
        left.abort()
        assert (await client.recover(left.ledger_id)).last_entry == 4
        new = await client.create()
        await write(new)
        assert await read_all(client, new) >= 4
        assert sum(gate.verified_count for gate in cluster.gates.values()) > 10

        await cluster.set_mode("open")
        cluster.tell()
        other = await cluster.client()  # of an older version: it knows stored keys alone
        await write(writer)
        await write(new)
        await writer.close()
        await new.close()
        assert await read_all(other, new) == 10


async def test_rotation_ends_no_writer_and_fails_no_read(autojump_clock: MockClock) -> None:
    """H213 to H241: two generations count; each rotation here is heard by bookies at different times."""
    async with trusted_cluster() as cluster:
        assert isinstance(cluster, TrustedCluster)
        cluster.rights["user/a"] = EVERY
        await cluster.set_mode("required")
        cluster.tell()
        client = await cluster.client(principal="user/a")
        writer = await client.create()
        await write(writer)
        for round_ in range(6):
            await cluster.rotate()
            for bookie in sorted(cluster.gates)[:: 1 if round_ % 2 else -1]:
                cluster.tell(bookie)
                await write(writer, 3)
                assert await read_all(client, writer) >= 4
                await trio.sleep(1)
        assert writer.error is None
        await writer.close()

        assert (await client.metadata(writer.ledger_id))[
            0
        ].last_fragment.epoch == 0  # none replaced


async def test_what_is_taken_away_ends_the_writer_and_leaves_the_reader(
    autojump_clock: MockClock,
) -> None:
    """H241, correction 15: an honest principal asks again, in the same slot."""
    async with trusted_cluster() as cluster:
        assert isinstance(cluster, TrustedCluster)
        cluster.rights = {"user/a": set(EVERY), "user/b": set(EVERY)}
        await cluster.set_mode("required")
        cluster.tell()
        one, other = [await cluster.client(principal=f"user/{who}") for who in "ab"]
        ended, lives = await one.create(), await other.create()
        await write(ended)
        await write(lives)

        await cluster.take_from("user/a", CapabilityKind.ADD, CapabilityKind.RECOVER)
        cluster.tell()
        before = {name: store.stats.entries for name, store in cluster.stores.items()}
        ended.add([b"late"], 4)
        await trio.sleep(3)
        assert isinstance(ended.error, NotAllowed)
        assert {name: store.stats.entries for name, store in cluster.stores.items()} == before
        assert await read_all(one, ended) >= 4  # it may still read
        await write(lives)
        await lives.close()


async def test_a_stranger_gets_nothing_where_grants_are_required(
    autojump_clock: MockClock,
) -> None:
    async with trusted_cluster() as cluster:
        assert isinstance(cluster, TrustedCluster)
        cluster.rights["user/a"] = EVERY
        await cluster.set_mode("required")
        cluster.tell()
        owner = await cluster.client(principal="user/a")
        nobody, older = await cluster.client(principal="user/none"), await cluster.client()
        writer = await owner.create()
        await write(writer)

        with pytest.raises(NotAllowed):
            await read_all(nobody, writer)
        with pytest.raises((CapabilityOutdated, DistributedLogError)):
            await read_all(older, writer)
        await write(writer)
        await writer.close()


async def test_what_many_ledgers_want_at_once_is_asked_together(autojump_clock: MockClock) -> None:
    async with trusted_cluster() as cluster:
        assert isinstance(cluster, TrustedCluster)
        cluster.rights["user/a"] = EVERY
        await cluster.set_mode("required")
        cluster.tell()
        client = await cluster.client(principal="user/a")
        writers = [await client.create() for _ in range(40)]
        await trio.sleep(1)
        for writer in writers:
            await write(writer, 1)
        asked = cluster.questions
        await cluster.rotate()
        await cluster.rotate()
        cluster.tell()
        await trio.sleep(1)
        for writer in writers:
            await write(writer, 1)

        assert cluster.questions - asked <= 4
        assert all(writer.error is None for writer in writers)


async def test_who_was_dialled_without_a_pass_is_dialled_again_when_it_comes(
    autojump_clock: MockClock,
) -> None:
    """The quorum was away for longer than a dial waits for it: nobody is locked out by that."""
    async with trusted_cluster() as cluster:
        assert isinstance(cluster, TrustedCluster)
        cluster.rights["user/a"] = EVERY
        await cluster.set_mode("required")
        cluster.tell()
        cluster.answer_s = CREDENTIAL_TIMEOUT_S + 3
        client = await cluster.client(principal="user/a")
        cluster.answer_s = 0.01
        await trio.sleep(5)
        writer = await client.create()
        await write(writer)
        assert await read_all(client, writer) >= 4


async def test_a_pass_that_could_not_be_had_is_asked_for_again(autojump_clock: MockClock) -> None:
    async with trusted_cluster() as cluster:
        assert isinstance(cluster, TrustedCluster)
        cluster.rights["user/a"] = EVERY
        await cluster.set_mode("required")
        cluster.tell()
        cluster.away, began = 2, trio.current_time()
        client = await cluster.client(principal="user/a")
        assert trio.current_time() - began < CREDENTIAL_TIMEOUT_S
        await write(await client.create())


@pytest.mark.parametrize("between", ["open", "report"])
async def test_a_ledger_of_the_moment_of_a_change_is_read_before_and_after_it(
    between: str, autojump_clock: MockClock
) -> None:
    """Its writer has heard of the mode, and its bookies have not: `WrongLedgerKey` for all others."""
    async with trusted_cluster() as cluster:
        assert isinstance(cluster, TrustedCluster)
        cluster.rights["anonymous"] = EVERY
        before = await cluster.client()
        old = await before.create()
        await write(old)
        client = await cluster.client(principal="anonymous", by="certificate")
        await cluster.set_mode("report")  # bookies are told later
        await trio.sleep(1)
        assert await read_all(client, old) >= 4
        writer = await client.create()
        await write(writer)
        assert await read_all(client, writer) >= 4
        assert not any(gate.enforcing for gate in cluster.gates.values())

        cluster.tell()
        await cluster.set_mode("required")
        cluster.tell()
        await write(writer)
        await cluster.set_mode(between)
        cluster.tell()
        await write(writer)
        assert await read_all(before, writer) >= 4


async def test_what_was_refused_is_not_remembered_where_nothing_is_refused(
    autojump_clock: MockClock,
) -> None:
    async with trusted_cluster() as cluster:
        assert isinstance(cluster, TrustedCluster)
        cluster.rights["user/a"] = EVERY
        await cluster.set_mode("required")
        cluster.tell()
        owner, nobody = [await cluster.client(principal=f"user/{who}") for who in ("a", "none")]
        writer = await owner.create()
        await write(writer)
        with pytest.raises(NotAllowed):
            await read_all(nobody, writer)
        await cluster.set_mode("report")
        cluster.tell()
        await trio.sleep(0.1)
        assert await read_all(nobody, writer) >= 4
