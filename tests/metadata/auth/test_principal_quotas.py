"""What one principal may have at the metadata at once (H216, H236)."""

import random
from collections import Counter
from contextlib import suppress

import pytest
import trio

from distributedlog.log.model.log_keys import app_version_key
from distributedlog.metadata.auth import principal_quotas as quotas
from distributedlog.metadata.auth.principal_quotas import RESEND_WINDOW_S, PrincipalQuotas
from distributedlog.metadata.client.metadata_client import MetadataClient
from distributedlog.metadata.model.commands import (
    ExpireLease,
    GrantLease,
    RevokeLease,
    Transact,
    encode_command,
)
from distributedlog.metadata.model.interface import prefix_end
from distributedlog.metadata.model.request_identity import qualified_client
from distributedlog.metadata.model.transaction import Put, Transaction
from distributedlog.metadata.protocol.client_messages import decode_outcome
from distributedlog.metadata.state import kv_state
from distributedlog.metadata.state.kv_snapshot import SnapshotBuilder, snapshot_chunks
from distributedlog.metadata.state.kv_state import KeyValueState
from distributedlog.metadata.state.request_dedup import SUCCEEDED, RequestDedup
from distributedlog.runtime.interfaces.errors import OutcomeUnknown, OverQuota, TooBusy
from distributedlog.runtime.protocol.frames import Op

from ..state.test_kv_state import do
from ..test_trust import LOG, begin
from ..trusted import believe, trusted_quorum

RING = 64
OTHERS = [f"user/u{n}" for n in range(4)]


class Flood:
    """A ring under one who asks for all that he is let, and others who ask now and then."""

    def __init__(self, *, bounded: bool) -> None:
        self.ring = RequestDedup(RING)
        self.quotas = PrincipalQuotas()
        self.quotas.begin_term(1, self.ring, 0.0)
        self.bounded = bounded
        self.index = self.refused = 0
        self.fresh: list[tuple[float, str, int]] = []

    def ask(self, principal: str, now: float) -> bool:
        if self.bounded and self.quotas.request_error(principal, now) is not None:
            return False
        self.quotas.on_accepted(principal, now)
        self.index += 1
        self.ring.add(self.index, qualified_client(principal, "c"), self.index, SUCCEEDED, 0)
        if principal in OTHERS:
            self.fresh.append((now, principal, self.index))
        return True

    def forgotten(self, now: float) -> int:
        """Of the others, and not so old that nobody asks again."""
        self.fresh = [one for one in self.fresh if one[0] > now - RESEND_WINDOW_S]
        return sum(self.ring.find(f"{who}/c", n) is None for _, who, n in self.fresh)

    def run(self) -> int:
        lost, now = 0, 0.0
        for tick in range(3000):
            now += RESEND_WINDOW_S / 100
            for _ in range(5):
                self.refused += not self.ask("user/eve", now)
            if tick % 40 == 0:
                assert self.ask(OTHERS[tick // 40 % len(OTHERS)], now), "others are always taken"
            lost += self.forgotten(now)
        return lost


def test_a_flood_of_one_makes_no_others_answers_unknown() -> None:
    """H216; without the bound the same flood does."""
    bounded = Flood(bounded=True)
    assert bounded.run() == 0
    assert bounded.refused
    assert bounded.index > 3000 / 100 * RING * 0.7  # and the flood got what was left
    assert Flood(bounded=False).run() > 0


def test_nodes_are_never_refused_and_a_new_leader_takes_what_it_finds_for_new() -> None:
    """H236. The leader before may have taken all of it just now."""
    ring = RequestDedup(RING)
    for number in range(1, RING + 1):
        ring.add(number, "user/eve/c", number, SUCCEEDED, 0)
    found = PrincipalQuotas()
    found.begin_term(7, ring, 100.0)
    found.begin_term(7, ring, 200.0)  # the same term: nothing begins anew
    for principal, is_taken in (("user/eve", False), ("user/u1", True), ("bookie/b1", True)):
        assert (found.request_error(principal, 101.0) is None) == is_taken
    assert found.request_error("user/eve", 100.0 + RESEND_WINDOW_S) is None


async def test_who_floods_the_quorum_waits_and_anothers_request_is_still_known(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    believe(monkeypatch)
    monkeypatch.setattr(kv_state, "REMEMBERED_REQUESTS", RING)
    for bounded in (True, False):
        if not bounded:
            monkeypatch.setattr(PrincipalQuotas, "request_error", lambda *asked: None)
        async with trusted_quorum() as world:
            await begin(world)
            etl, eve = await world.one("user/etl"), await world.one("user/eve")
            said = Transact("c", 1, 0, Transaction((), (Put(app_version_key(LOG, "a"), b"1"),)))
            assert await _ask(etl, said) is None
            done: list[object] = []
            async with trio.open_nursery() as nursery:
                for number in range(1, RING + 1):
                    nursery.start_soon(_flood, eve, number, done)
            assert (len(done) < RING) == bounded
            again = await _ask(etl, said)
            assert (again is None) if bounded else isinstance(again, OutcomeUnknown)


async def _flood(client: MetadataClient, number: int, done: list[object]) -> None:
    with suppress(TooBusy):  # it came again and again, for as long as it waits
        done.append(await _ask(client, Transact("f", number, 1 << 62, Transaction())))


async def _ask(client: MetadataClient, command: Transact) -> object:
    reply = await client.request(Op.META_TRANSACT, encode_command(command))
    return decode_outcome(reply.body)[1].error


async def test_one_principal_has_so_many_leases_and_watches_and_others_have_theirs(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    believe(monkeypatch)
    monkeypatch.setattr(quotas, "LEASES_PER_PRINCIPAL_MAX", 3)
    monkeypatch.setattr(quotas, "WATCHES_PER_PRINCIPAL_MAX", 2)
    async with trusted_quorum() as world:
        await begin(world)
        eve, etl, node = [await world.one(who) for who in ("user/eve", "user/etl", "bookie/b1")]
        leases = [await eve.grant_lease(60_000) for _ in range(3)]
        with pytest.raises(OverQuota, match="holds 3 leases"):
            await eve.grant_lease(60_000)
        for other in (etl, node, node, node, node):
            await other.grant_lease(60_000)
        await eve.revoke_lease(leases[0])
        await eve.grant_lease(60_000)

        start = b"trust/mode"
        first = eve.watch(start, prefix_end(start), after_revision=0)
        second = eve.watch(start, prefix_end(start), after_revision=0)
        async with first as one, second as two:
            for watch in (one, two):
                await watch.next_batch()
            async with eve.watch(start, prefix_end(start), after_revision=0) as third:
                with trio.move_on_after(5) as waits:
                    await third.next_batch()
                assert waits.cancelled_caught
            async with etl.watch(start, prefix_end(start), after_revision=0) as theirs:
                await theirs.next_batch()


def test_the_last_leases_are_for_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """H236"""
    monkeypatch.setattr(quotas, "USER_LEASES_MAX", 2)
    state = KeyValueState()
    for lease in (1, 2):
        state.add_lease(lease, 1000, "user/other")
    assert PrincipalQuotas().lease_error(state, "user/etl") is not None
    assert PrincipalQuotas().lease_error(state, "bookie/b1") is None


def test_leases_of_narrowed_tokens_are_their_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each narrowing is an owner of its own, and a user makes as many of them as it likes."""
    monkeypatch.setattr(quotas, "LEASES_PER_PRINCIPAL_MAX", 3)
    state, found = KeyValueState(), PrincipalQuotas()
    for lease in (1, 2, 3):
        assert found.lease_error(state, "user/eve") is None
        state.add_lease(lease, 1000, f"user/~{lease}")
        found.record_owner(f"user/~{lease}", "user/eve", state.lease_count_by_owner)
    assert found.lease_error(state, "user/eve") is not None
    assert found.lease_error(state, "user/etl") is None


def test_a_narrowed_token_that_has_ended_its_leases_counts_no_more_and_again_when_it_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quotas, "LEASES_PER_PRINCIPAL_MAX", 1)
    state, found = KeyValueState(), PrincipalQuotas()
    for times in range(3):
        found.record_owner("user/~1", "user/eve", state.lease_count_by_owner)
        assert found.lease_error(state, "user/eve") is None  # it has asked, and has none yet
        do(state, GrantLease("user/~1/c", times, state.index, 1000))
        found.record_owner("user/~1", "user/eve", state.lease_count_by_owner)
        assert found.lease_error(state, "user/eve") is not None
        do(state, RevokeLease("user/~1/c", 100 + times, state.index, state.next_lease - 1))
    assert state.lease_count_by_owner == {}


def test_leases_are_counted_by_owner_as_they_come_and_go() -> None:
    """Nobody walks over all leases to count those of one; a snapshot has them, too."""
    chance, state = random.Random(7), KeyValueState()
    for number in range(300):
        if state.leases and chance.random() < 0.4:
            lease = chance.choice(sorted(state.leases))
            do(state, ExpireLease(lease=lease))
        else:
            do(state, GrantLease(f"user/u{chance.randrange(5)}/c", number, state.index, 1000))
        builder = SnapshotBuilder(KeyValueState())
        for chunk in snapshot_chunks(state):
            builder.add(chunk)
        expected = Counter(one.owner for one in state.leases.values())
        assert builder.finish().lease_count_by_owner == state.lease_count_by_owner == expected


def test_a_new_leader_counts_narrowed_tokens_with_their_user() -> None:
    """What the ring remembers of them it has under names that say nothing of whose they are."""
    ring = RequestDedup(RING)
    for number in range(1, RING + 1):
        ring.add(number, f"user/~{number % 4}/c", number, SUCCEEDED, 0)
    found = PrincipalQuotas()
    found.begin_term(1, ring, 0.0)
    assert found.request_error("user/eve", 1.0) is None, "nothing is known to be its own yet"
    for number in range(4):
        found.record_owner(f"user/~{number}", "user/eve", {})
    assert found.request_error("user/eve", 1.0) is not None
    assert found.request_error("user/etl", 1.0) is None
    for number in range(4):  # which it goes on with
        found.on_accepted(f"user/~{number}", 2.0)
    assert found.request_error("user/etl", RESEND_WINDOW_S + 3) is None, (
        "all is forgotten, and none below 0"
    )
    assert found._count_by_principal == {}


def test_whose_narrowed_tokens_are_is_forgotten_where_nothing_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quotas, "SCOPED_TOKENS_MAX", 50)
    state, found = KeyValueState(), PrincipalQuotas()
    state.add_lease(1, 1000, "user/~0")
    found.begin_term(1, RequestDedup(RING), 0.0)
    for number in range(1000):
        found.record_owner(f"user/~{number}", "user/eve", state.lease_count_by_owner)
    assert len(found._principal_of_owner) <= 50
    assert len(found._owners_of_principal["user/eve"]) <= 50, "who asks for no lease, too"
    assert "user/~0" in found._principal_of_owner, "it holds a lease"
    assert found.lease_error(state, "user/eve") is None
    assert len(found._owners_of_principal["user/eve"]) == 1
