"""Whose a request is, and a lease (H216, H217)."""

from dataclasses import replace

import pytest

from distributedlog.log.model.log_keys import purge_key
from distributedlog.metadata.model.commands import (
    AuthorizationChange,
    ExpireLease,
    GrantLease,
    Transact,
    encode_command,
)
from distributedlog.metadata.model.request_identity import (
    CLIENT_CHARS_MAX,
    is_principal,
    principal_of_client,
    qualified_client,
    request_identity,
)
from distributedlog.metadata.model.transaction import Compare, Put, Transaction
from distributedlog.metadata.protocol.client_messages import decode_outcome
from distributedlog.metadata.state.kv_snapshot import SnapshotBuilder, snapshot_chunks
from distributedlog.metadata.state.kv_state import KeyValueState
from distributedlog.runtime.interfaces.errors import LeaseExpired, NotAllowed
from distributedlog.runtime.interfaces.principals import ANONYMOUS, Token
from distributedlog.runtime.protocol.frames import Op, pack, unpack

from ..quorum import put
from ..state.test_kv_state import do
from ..test_trust import LOG, STATE, begin
from ..trusted import believe, trusted_quorum

LONGEST = "user/" + "n" * 41


def test_a_principal_stands_before_its_clients_id_and_fits() -> None:
    assert qualified_client(ANONYMOUS, "c1") == "c1"
    assert principal_of_client("c1") == ""
    assert qualified_client("user/etl", "c1") == "user/etl/c1"
    assert principal_of_client("user/etl/c1") == "user/etl"
    named = qualified_client(LONGEST, "bookie-b1-0123456789abcdef")
    assert is_principal(LONGEST)
    assert len(named) <= CLIENT_CHARS_MAX
    assert principal_of_client(named) == LONGEST
    assert named != qualified_client(LONGEST, "bookie-b2-0123456789abcdef")


@pytest.mark.parametrize(
    "text", ["", "etl", "user/", "user/a/b", "root/etl", "user/a b", "user/a\n", LONGEST + "n"]
)
def test_what_is_no_principal(text: str) -> None:
    assert not is_principal(text)


def test_tokens_of_one_narrowing_are_one_owner_and_of_others_are_not() -> None:
    """A narrowed token ends no lock of its user's other programs; its successor keeps its own."""
    plain = Token("etl", 5, 1, 1, "c1", b"a" * 8)
    reads = replace(plain, token_scope=(("ns", "a/", 1),))
    later = replace(reads, ends_s=9, revoked_at_revision=2, key=2, name=b"b" * 8)
    other = replace(plain, token_scope=(("ns", "b/", 1),))
    elsewhere = replace(reads, user="ann")

    assert request_identity("user/etl", None) == request_identity("user/etl", plain) == "user/etl"
    found = [request_identity(one.principal, one) for one in (reads, later, other, elsewhere)]
    assert found[0] == found[1]
    assert len(set(found)) == 3
    assert all(is_principal(one) for one in found)
    assert all(len(qualified_client(one, "c" * 64)) <= CLIENT_CHARS_MAX for one in found)


def owned_state() -> KeyValueState:
    state = KeyValueState()
    do(state, GrantLease("user/etl/c1", 1, 0, 1000))
    do(state, GrantLease("c2", 1, 0, 2000))
    do(state, Transact("user/etl/c1", 2, 0, put(b"k", b"v", lease=1)))
    return state


def test_the_owner_of_a_lease_outlives_a_snapshot() -> None:
    state = owned_state()
    do(state, AuthorizationChange("c2", 2, 0, put(b"trust/mode", b"")))
    chunks = list(snapshot_chunks(state))
    builder = SnapshotBuilder(KeyValueState())
    for chunk in chunks:
        builder.add(chunk)
    again = builder.finish()

    assert unpack(chunks[0], "the head")[0] == 3
    assert {n: (one.ttl_ms, one.owner) for n, one in again.leases.items()} == {
        1: (1000, "user/etl"),
        2: (2000, ""),
    }
    assert again.authorization_revision == state.authorization_revision == 2
    assert list(snapshot_chunks(again)) == chunks


def test_a_state_that_nobody_owns_anything_of_is_written_as_before() -> None:
    """Programs of before read it: the head, and leases of two fields."""
    state = KeyValueState()
    do(state, GrantLease("c", 1, 0, 1000))
    do(state, Transact("c", 2, 0, put(b"k", b"v", lease=1)))

    assert list(snapshot_chunks(state)) == [
        pack([2, 2, 1, 2, 0, 1, 1, 2]),
        pack(["leases", [[1, 1000]]]),
        bytes.fromhex(
            "4b0100210000006b010000000000000001000000000000000100000000000000010000000000000076"
        ),
        pack(["requests", [[1, "c", 1, 0, 1], [2, "c", 2, 0, 1]]]),
    ]


def test_a_put_of_the_same_keys_is_no_change_of_trust() -> None:
    state = KeyValueState()
    do(state, Transact("c", 1, 0, put(b"trust/mode", b"x")))
    assert state.authorization_revision == 0
    do(
        state,
        AuthorizationChange(
            "c", 2, 0, Transaction((Compare.version(b"absent", 1),), (Put(b"a", b""),))
        ),
    )
    assert state.authorization_revision == 0  # it did not hold
    do(state, AuthorizationChange("c", 3, 0, put(b"trust/mode", b"y")))
    assert state.authorization_revision == state.revision == 2
    do(state, ExpireLease(lease=7))
    assert state.authorization_revision == 2


async def test_nobody_answers_or_takes_another_ones_next_requests(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    """H216: a squatter takes the next hundred numbers of a client whose id it knows."""
    believe(monkeypatch)
    async with trusted_quorum() as world:
        honest = await world.nodes.client(principal="user/etl", client_id="c1")
        await honest.transact(put(b"own", b"0"))
        for thief in ("user/mallory", ""):
            squatter = await world.nodes.client(principal=thief, client_id="c1")
            for n in range(100):
                await squatter.transact(put(b"squat%d" % n, b""))
        for n in range(100):
            assert (await honest.transact(put(b"own", b"%d" % n))).succeeded

        found = await honest.get(b"own")
        assert found is not None
        assert (found.value, found.version) == (b"99", 101)


async def test_a_lease_is_its_principals_alone(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    """H217: neither kept, nor ended, by who guesses its number; nor after another node leads."""
    believe(monkeypatch)
    async with trusted_quorum(3) as world:
        etl, mallory = await world.one("user/etl"), await world.one("user/mallory")
        lease = await etl.grant_lease(60_000)
        await etl.transact(put(b"lock", b"etl", lease=lease))

        for _ in range(2):
            with pytest.raises(NotAllowed, match="another principal"):
                await mallory.renew_lease(lease)
            for guess in range(lease + 1):
                if guess == lease:
                    with pytest.raises(NotAllowed, match="another principal"):
                        await mallory.revoke_lease(guess)
                else:
                    await mallory.revoke_lease(guess)
            assert await etl.get(b"lock") is not None
            await etl.renew_lease(lease)
            await world.nodes.kill(leader := await world.nodes.leader())
            await world.nodes.start(leader)
            await world.nodes.leader()

        await etl.revoke_lease(lease)
        assert await etl.get(b"lock") is None
        with pytest.raises(LeaseExpired):
            await etl.renew_lease(lease)


async def test_a_lease_of_an_anonymous_client_is_as_it_was(autojump_clock: object) -> None:
    async with trusted_quorum() as world:
        one, other = await world.nodes.client(), await world.nodes.client()
        lease = await one.grant_lease(60_000)
        await other.renew_lease(lease)
        await other.revoke_lease(lease)
        with pytest.raises(LeaseExpired):
            await one.renew_lease(lease)


async def test_a_lease_is_not_ended_before_it_is_granted(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    """H217: the numbers to come can be guessed, and one may be granted before an end of it is applied."""
    believe(monkeypatch)
    async with trusted_quorum() as world:
        etl, eve = await world.one("user/etl"), await world.one("user/eve")
        lease = await etl.grant_lease(60_000)
        for ahead in range(1, 4):
            with pytest.raises(NotAllowed, match="not granted yet"):
                await eve.revoke_lease(lease + ahead)
        assert await etl.grant_lease(60_000) == lease + 1
        await etl.revoke_lease(lease + 1)
        await etl.revoke_lease(lease + 1)  # that it has ended is no secret, and no error


async def test_what_was_done_is_answered_though_it_ended_its_own_right(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    """Who deletes a log has no right on it after that; the answer may be lost, and is asked for again.

    What was refused by its condition is judged anew: its answer shows what is there now.
    """
    believe(monkeypatch)
    async with trusted_quorum() as world:
        await begin(world)
        admin, etl = await world.one("user/root"), await world.one("user/etl")
        purge = Transact("c", 1, 1 << 62, Transaction((), (Put(purge_key(LOG), b""),)))
        failed = Transaction((Compare.version(STATE, 99),), (Put(purge_key(LOG), b""),))
        for _ in range(2):
            reply = await etl.request(Op.META_TRANSACT, encode_command(purge))
            assert decode_outcome(reply.body)[1].error is None
        shown = Transact("c", 2, 1 << 62, failed)
        reply = await etl.request(Op.META_TRANSACT, encode_command(shown))
        was_shown = decode_outcome(reply.body)[1].transaction
        assert was_shown is not None
        assert was_shown.current[0] is not None

        await admin.change_authorization("revoke", "etl", "ns", "orders")
        await etl.request(Op.META_TRANSACT, encode_command(purge))
        for asked in (shown, replace(purge, request_number=3)):
            with pytest.raises(NotAllowed):
                await etl.request(Op.META_TRANSACT, encode_command(asked))
