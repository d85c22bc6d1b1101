"""What an operator asks about bookies that go, answered from the metadata alone."""

import pytest

from distributedlog.cluster.repair import decommission as leaving
from distributedlog.cluster.repair.decommission import Shortage
from distributedlog.ledger.model import ledger_keys as keys
from distributedlog.ledger.model import ledger_transactions as transactions
from distributedlog.ledger.model.bookie_registration import BookieRegistration
from distributedlog.ledger.model.ledger_metadata import Fragment, LedgerMetadata
from distributedlog.ledger.model.missing_range import MissingRange, encode_missing_ranges
from distributedlog.log.model.lock_record import LockRecord
from distributedlog.log.model.log_keys import lock_key
from distributedlog.metadata.model.transaction import Delete, Put, Transaction
from distributedlog.runtime.interfaces.errors import InvalidRequest
from distributedlog.runtime.protocol.frames import pack
from tests.metadata.local_metadata import LocalMetadata


async def _metadata(**labels: str) -> LocalMetadata:
    """Bookies by id, with their labels; all of them are registered."""
    made = LocalMetadata()
    for bookie, label in labels.items():
        cookie = Put(keys.cookie_key(bookie), pack({"label": label, "incarnation": 1}))
        there = Put(keys.bookie_key(bookie), b"")
        await made.transact(Transaction((), (cookie, there)))
    return made


async def test_a_bookie_is_found_by_id_by_its_beginning_or_by_name_and_never_guessed() -> None:
    metadata = await _metadata(abcdef="one", abcxyz="two", ffff="two")

    assert await leaving.find_bookie(metadata, "abcdef") == "abcdef"
    assert await leaving.find_bookie(metadata, "abcd") == "abcdef"
    assert await leaving.find_bookie(metadata, "one") == "abcdef"
    offline = Transaction((), (Delete(keys.bookie_key("abcxyz")),))
    await metadata.transact(offline)
    both = r"2 bookies are called two: abcxyz \(offline\), ffff \(up\); give the id"
    for wrong, said in (("two", both), ("abc", "no bookie is"), ("nobody", "no bookie")):
        with pytest.raises(InvalidRequest, match=said):
            await leaving.find_bookie(metadata, wrong)


async def test_it_says_how_far_a_bookie_has_come() -> None:
    metadata = await _metadata(b1="one")
    await leaving.request_decommission(metadata, "b1")
    on = [Put(keys.bookie_ledger_key("b1", ledger), b"") for ledger in range(3)]
    await metadata.transact(Transaction((), tuple(on)))

    before = await leaving.decommission_status(metadata, "b1")
    await leaving.cancel_decommission(metadata, "b1")
    await metadata.transact(Transaction((), tuple(Delete(put.key) for put in on)))
    after = await leaving.decommission_status(metadata, "b1")

    assert before == leaving.DecommissionStatus("b1", 3, running=True, known=True, asked=True)
    assert not before.drained
    assert after == leaving.DecommissionStatus("b1", 0, running=True, known=True, asked=False)
    assert after.drained


async def test_who_is_not_known_is_not_asked() -> None:
    """Else its key would stand there for ever."""
    metadata = await _metadata()

    with pytest.raises(InvalidRequest):
        await leaving.request_decommission(metadata, "b9")

    assert await metadata.get(keys.leaving_key("b9")) is None


async def test_shortages_are_what_is_noted_and_what_lies_on_bookies_that_are_away() -> None:
    metadata = await _metadata(b1="one", b2="two")
    await metadata.transact(
        Transaction(
            (),
            (
                Put(
                    keys.missing_ranges_key(7),
                    encode_missing_ranges([MissingRange("b1", 3, None), MissingRange("b2", 0, 5)]),
                ),
                Put(keys.bookie_ledger_key("b1", 7), b""),
                Put(keys.bookie_ledger_key("b2", 8), b""),
                Delete(keys.bookie_key("b2")),
            ),
        )
    )

    assert [one async for one in leaving.shortages(metadata)] == [
        Shortage(7, "b1", 3, None, "recorded"),
        Shortage(7, "b2", 0, 5, "recorded"),
        Shortage(8, "b2", 0, None, "bookie is offline"),
    ]


async def test_each_ledger_that_is_left_says_what_it_waits_for() -> None:
    """H102: a drain ends, or names who prevents it."""
    metadata = await _metadata(b1="one", b2="two", b3="three", b4="four")
    for bookie in ("b1", "b2", "b3"):
        there = BookieRegistration(bookie, {"": ("h", 1)})
        await metadata.transact(
            Transaction(
                (), (Put(keys.bookie_key(bookie), there.encode()), Delete(keys.bookie_key("b4")))
            )
        )
    await leaving.request_decommission(metadata, "b1")
    custom = {"log": b"orders"}
    everywhere, elsewhere = ("b1", "b2", "b3"), ("b1", "b2", "b4")
    alone = ("b1", "b4", "b5")
    for ledger_id, bookies, owner in (
        (1, everywhere, None),
        (2, elsewhere, None),
        (3, everywhere, (7, 2)),
        (4, everywhere, (8, 1)),
        (5, everywhere, None),
        (6, alone, None),
    ):
        fragment = Fragment(0, bookies, 0)
        ledger = LedgerMetadata(
            ledger_id, 3, 3, 2, (fragment,), bytes(16), owner=owner, custom=custom
        )
        await metadata.transact(transactions.creation_ops(ledger, ()))
        if ledger_id in (1, 2, 6):
            closed = ledger.close_by_writer(9, 100)
            await metadata.transact(transactions.close_ops(closed, 1, ()))
    lock = LockRecord("db-7", "w", 0)
    await metadata.transact(Transaction((), (Put(lock_key(7), lock.encode()),)))
    await metadata.transact(Transaction((), (Put(keys.bookie_ledger_key("b1", 9), b""),)))

    found = (await leaving.decommission_status(metadata, "b1", waiting_max=10)).waiting

    assert [one.ledger for one in found] == [1, 2, 3, 4, 5, 6, 9]
    said = {one.ledger: one.why for one in found}
    assert said[1].startswith("no bookie can take its place: it is stored on b1, b2, b3")
    assert said[1].endswith("writable bookies are b2, b3")
    assert said[2] == "waits for its copy"
    assert said[3] == 'open, segment 2 of log "orders": its writer db-7 must roll it'
    assert said[4].endswith("which has no writer: closed within half a minute")
    assert said[5].startswith("open, of no log")
    assert said[6] == "waits for its copy"  # b1 itself runs, and gives what it has
    assert said[9].startswith("deleted")
    await metadata.transact(Transaction((), (Delete(keys.bookie_key("b1")),)))
    (*_, last) = (await leaving.decommission_status(metadata, "b1", waiting_max=6)).waiting
    assert last.why == "no source: all its bookies are offline"
    assert (await leaving.decommission_status(metadata, "b1", waiting_max=2)).ledgers == 7
