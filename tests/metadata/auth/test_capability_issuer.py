"""Who is given which capabilities by the leader, and what nobody is given."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from distributedlog.bookie.session.bookie_authorizer import BookieAuthorizer
from distributedlog.ledger.model.ledger_keys import cookie_key, ledger_key
from distributedlog.metadata.auth.capability_issuer import CapabilityIssuer, generations_of
from distributedlog.metadata.auth.quorum_secrets import GENERATIONS_KEY, encode_generations
from distributedlog.metadata.client.metadata_client import MetadataClient
from distributedlog.metadata.model.acl_records import (
    MODE_KEY,
    REVOKED_PREFIX,
    encode_mode,
    revoked_key,
)
from distributedlog.metadata.model.commands import Transact, encode_command
from distributedlog.metadata.model.configuration import UNKNOWN_CONFIGURATION
from distributedlog.metadata.model.interface import prefix_end
from distributedlog.metadata.model.transaction import Compare, Delete, Put, Transaction
from distributedlog.metadata.replica.secret_rotation import SecretRotation
from distributedlog.metadata.state.kv_snapshot import SnapshotBuilder
from distributedlog.metadata.state.kv_state import KeyValueState
from distributedlog.metadata.storage.backup_format import BackupHeader, backup_chunks
from distributedlog.runtime.interfaces.errors import NotAllowed, NotReady
from distributedlog.runtime.protocol.capabilities import (
    CapabilityKind,
    Generation,
    is_capability,
    verify_session_credential,
)
from distributedlog.runtime.protocol.capability_messages import (
    BookieKeysReply,
    BookieKeysRequest,
    CapabilityReply,
    CapabilityRequest,
)
from distributedlog.runtime.protocol.frames import Op

from ..quorum import put, serving_quorum
from ..test_trust import LOG, begin
from ..trusted import believe, trusted_quorum
from .test_authorizer import cookie, record

FIRST = Generation(1, b"k" * 32, b"p" * 32)
ASKED = CapabilityRequest(CapabilityKind.ADD, {7: ("b1", "b2"), 8: ("b1",)})


def desk() -> CapabilityIssuer:
    """``user/a`` may what it likes with ledger 7, and b1 is ``bookie/one``."""
    return CapabilityIssuer(
        "c1",
        lambda principal, token, kind, ledger, bookies: (principal, ledger) == ("user/a", 7),
        lambda principal, bookie: (principal, bookie) == ("bookie/one", "b1"),
    )


def state_of(mode: str, *more: Put) -> KeyValueState:
    state = KeyValueState()
    puts = [Put(MODE_KEY, encode_mode(mode)), *more]
    for index, one in enumerate(puts, 1):
        state.apply(index, encode_command(Transact(transaction=Transaction(operations=(one,)))))
    return state


SECRETS = Put(GENERATIONS_KEY, encode_generations((FIRST,)))


def test_while_the_cluster_is_open_nothing_is_given_and_nothing_is_drawn() -> None:
    answer = CapabilityReply.decode(desk().answer(state_of("open"), ASKED, "user/a"))

    assert (answer.mode, answer.session_credential, answer.keys) == ("open", b"", {})


def test_before_the_secrets_are_drawn_there_is_no_answer() -> None:
    with pytest.raises(NotReady):
        desk().answer(state_of("report"), ASKED, "user/a")


def test_where_grants_are_required_a_principal_gets_what_it_may_have_and_a_pass() -> None:
    state = state_of("required", SECRETS)

    answer = CapabilityReply.decode(desk().answer(state, ASKED, "user/a"))

    assert answer.keys[8] == ()
    for bookie, key in zip(("b1", "b2"), answer.keys[7], strict=True):
        held = [FIRST.for_bookie("c1", bookie)]
        assert is_capability(key, held, CapabilityKind.ADD, 7, "user/a", 0)
        assert not is_capability(key, held, CapabilityKind.RECOVER, 7, "user/a", 0)
    assert verify_session_credential(answer.session_credential, [FIRST]) == ("user/a", 0, 0)
    assert CapabilityReply.decode(desk().answer(state, ASKED, "user/b")).keys == {7: (), 8: ()}


async def test_what_report_gives_away_is_good_in_report_alone() -> None:
    """Whom `required` would refuse has nothing that outlives `report`."""
    asked = CapabilityRequest(CapabilityKind.READ, {8: ("b1",)})
    answer = CapabilityReply.decode(desk().answer(state_of("report", SECRETS), asked, "user/a"))
    gate = BookieAuthorizer(1e9, lambda: 0.0)
    for mode, is_good in (("report", True), ("required", False), ("report", True)):
        gate.apply_reply(BookieKeysReply(mode, (FIRST.for_bookie("c1", "b1"),), {}))
        assert gate.proves("user/a", CapabilityKind.READ, 8, answer.keys[8][0]) == is_good
        assert not gate.proves("user/b", CapabilityKind.READ, 8, answer.keys[8][0])

    rightful = CapabilityReply.decode(desk().answer(state_of("report", SECRETS), ASKED, "user/a"))
    gate.apply_reply(BookieKeysReply("required", (FIRST.for_bookie("c1", "b1"),), {}))
    assert gate.proves("user/a", CapabilityKind.ADD, 7, rightful.keys[7][0])


def test_who_is_anonymous_gets_no_pass() -> None:
    everybody = CapabilityIssuer("c1", lambda *asked: True, lambda *asked: False)
    answer = CapabilityReply.decode(
        everybody.answer(state_of("report", SECRETS), ASKED, "anonymous")
    )

    assert [len(keys) for keys in answer.keys.values()] == [2, 1]
    assert (answer.mode, answer.session_credential) == ("report", b"")


def test_what_was_given_before_something_was_taken_away_differs() -> None:
    """H241: bookies that have heard of it take the newer ones alone."""
    before = CapabilityReply.decode(desk().answer(state_of("required", SECRETS), ASKED, "user/a"))
    taken = state_of("required", SECRETS, Put(revoked_key("user/a"), b"x"))
    after = CapabilityReply.decode(desk().answer(taken, ASKED, "user/a"))

    assert before.keys[7] != after.keys[7]
    assert is_capability(
        after.keys[7][0],
        [FIRST.for_bookie("c1", "b1")],
        CapabilityKind.ADD,
        7,
        "user/a",
        taken.revision,
    )
    told = BookieKeysReply.decode(desk().answer(taken, BookieKeysRequest("b1"), "bookie/one"))
    assert told.revoked_at_revisions == {"user/a": taken.revision}


def test_a_bookie_is_given_its_own_keys_and_nobody_elses() -> None:
    """H229."""
    state = state_of("required", SECRETS)

    told = BookieKeysReply.decode(desk().answer(state, BookieKeysRequest("b1"), "bookie/one"))
    assert told.generations == (FIRST.for_bookie("c1", "b1"),)
    assert FIRST.key not in told.encode()
    for principal, bookie in (("bookie/one", "b2"), ("user/a", "b1"), ("anonymous", "b1")):
        with pytest.raises(NotAllowed):
            desk().answer(state, BookieKeysRequest(bookie), principal)


def test_a_save_holds_no_secrets_and_is_whole() -> None:
    state = state_of("required", SECRETS, Put(b"secreta", b"1"), Put(b"z", b"2"))

    _, *chunks = backup_chunks(BackupHeader("c1", 1, 1, UNKNOWN_CONFIGURATION), state)
    builder = SnapshotBuilder(KeyValueState())
    for chunk in chunks:
        builder.add(chunk)
    restored = builder.finish()

    assert sorted(restored.stored_values) == [b"secreta", MODE_KEY, b"z"]
    assert not any(FIRST.key in chunk or FIRST.credential_key in chunk for chunk in chunks)


async def test_a_quorum_draws_its_secrets_rotates_them_and_shows_them_to_nobody(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H234: not by a key, a range, a watch, a compare, a delete, nor in a save."""
    drawers: list[SecretRotation] = []
    make = SecretRotation.__init__

    def noted(self: SecretRotation, *arguments: Any) -> None:
        make(self, *arguments)
        drawers.append(self)

    monkeypatch.setattr(SecretRotation, "__init__", noted)
    async with serving_quorum() as (_, client):
        await client.transact(put(MODE_KEY, encode_mode("report")))
        leader = next(one for one in drawers if one._replica.is_leader)
        state = leader._replica.state
        assert generations_of(state) == ()

        reply = await client.request(Op.META_CAPS, ASKED.encode())
        assert len(CapabilityReply.decode(reply.body).keys[7]) == 2
        assert [one.number for one in generations_of(state)] == [1]

        rotated: list[object] = []
        leader.rotate(rotated.append)
        leader.rotate(rotated.append)  # at the same time: one of the two
        await trio.sleep(1)
        assert rotated[0] is None
        assert [one.number for one in generations_of(state)] == [2, 1]
        leader.rotate(rotated.append)
        await trio.sleep(1)
        assert [one.number for one in generations_of(state)] == [3, 2]
        leader.rotate(rotated.append, only_first=True)
        assert generations_of(state)[0].number == 3

        asks: list[Callable[[], Awaitable[object]]] = [
            lambda: client.get(GENERATIONS_KEY),
            lambda: client.range(b"", b"\xff"),
            lambda: client.range(b"secret/", b"secret0"),
            lambda: client.transact(put(GENERATIONS_KEY)),
            lambda: client.transact(Transaction((), (Delete(GENERATIONS_KEY),))),
            lambda: client.transact(Transaction((Compare.exists(GENERATIONS_KEY),))),
        ]
        for ask in asks:
            with pytest.raises(NotAllowed):
                await ask()
        async with client.watch(b"secret/", b"secret0", after_revision=0) as watch:
            with pytest.raises(NotAllowed):
                await watch.next_batch()
        saved = b"".join([chunk async for chunk in client.save()])
        assert MODE_KEY in saved
        assert b"secret/" not in saved


async def test_a_quorum_that_judges_gives_each_what_it_may_have(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    """Over the wire: a writer, a stranger, bookies by their cookies; and all may see the mode."""
    believe(monkeypatch)
    async with trusted_quorum(3) as world:
        nobody = await world.nodes.client()
        made = (
            Put(ledger_key(7), record(7, LOG).encode()),
            Put(cookie_key("i1"), cookie("b1")),
            Put(cookie_key("i2"), cookie("b2")),
        )
        await nobody.transact(Transaction((), made))
        await begin(world)
        etl, b1 = await world.one("user/etl"), await world.one("bookie/b1")
        question = CapabilityRequest(CapabilityKind.ADD, {7: ("i1", "i2")}).encode()

        async def asked(client: MetadataClient) -> CapabilityReply:
            return CapabilityReply.decode((await client.request(Op.META_CAPS, question)).body)

        mine = await asked(etl)
        told = BookieKeysReply.decode(
            (await b1.request(Op.META_CAPS, BookieKeysRequest("i1").encode())).body
        )
        assert told.mode == mine.mode == "required"
        assert is_capability(
            mine.keys[7][0], told.generations, CapabilityKind.ADD, 7, "user/etl", 0
        )
        assert not is_capability(
            mine.keys[7][1], told.generations, CapabilityKind.ADD, 7, "user/etl", 0
        )
        assert verify_session_credential(mine.session_credential, told.generations) == (
            "user/etl",
            0,
            0,
        )
        assert (await asked(nobody)).keys == {7: ()}
        assert (await asked(b1)).keys == {7: ()}
        with pytest.raises(NotAllowed):
            await b1.request(Op.META_CAPS, BookieKeysRequest("i2").encode())

        for client in (nobody, etl, b1):  # as pools and gates follow it
            page = await client.range(MODE_KEY, prefix_end(MODE_KEY))
            assert [item.key for item in page.items] == [MODE_KEY]
        async with b1.watch(
            REVOKED_PREFIX, prefix_end(REVOKED_PREFIX), after_revision=page.revision
        ) as watch:
            admin = await world.one("user/root")
            await admin.change_authorization("revoke", "etl", "ns", "orders")
            assert [event.item.key for event in (await watch.next_batch()).events] == [
                revoked_key("user/etl")
            ]
        assert (await asked(etl)).keys == {7: ()}
        told = BookieKeysReply.decode(
            (await b1.request(Op.META_CAPS, BookieKeysRequest("i1").encode())).body
        )
        assert told.revoked_at_revisions["user/etl"] > 0
