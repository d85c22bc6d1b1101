"""What an operator asks about bookies that go, answered from the metadata alone."""

import pytest

from distributedlog.cluster import leaving
from distributedlog.cluster.leaving import Shortage
from distributedlog.ledger import holes, keys
from distributedlog.ledger.holes import Hole
from distributedlog.metadata.local import LocalMetadata
from distributedlog.metadata.transaction import Delete, Put, Transaction
from distributedlog.runtime.errors import InvalidRequest
from distributedlog.runtime.frames import pack


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
    down = Transaction((), (Delete(keys.bookie_key("abcxyz")),))
    await metadata.transact(down)
    both = r"2 bookies are called two: abcxyz \(down\), ffff \(up\); give the id"
    for wrong, said in (("two", both), ("abc", "no bookie is"), ("nobody", "no bookie")):
        with pytest.raises(InvalidRequest, match=said):
            await leaving.find_bookie(metadata, wrong)


async def test_it_says_how_far_a_bookie_has_come() -> None:
    metadata = await _metadata(b1="one")
    await leaving.ask_to_leave(metadata, "b1")
    on = [Put(keys.on_key("b1", ledger), b"") for ledger in range(3)]
    await metadata.transact(Transaction((), tuple(on)))

    before = await leaving.how_far(metadata, "b1")
    await leaving.ask_to_stay(metadata, "b1")
    await metadata.transact(Transaction((), tuple(Delete(put.key) for put in on)))
    after = await leaving.how_far(metadata, "b1")

    assert before == leaving.Leaving("b1", 3, running=True, known=True, asked=True)
    assert not before.drained
    assert after == leaving.Leaving("b1", 0, running=True, known=True, asked=False)
    assert after.drained


async def test_who_is_not_known_is_not_asked() -> None:
    """Else its key would stand there for ever."""
    metadata = await _metadata()

    with pytest.raises(InvalidRequest):
        await leaving.ask_to_leave(metadata, "b9")

    assert await metadata.get(keys.leaving_key("b9")) is None


async def test_shortages_are_what_is_noted_and_what_lies_on_bookies_that_are_away() -> None:
    metadata = await _metadata(b1="one", b2="two")
    await metadata.transact(
        Transaction(
            (),
            (
                Put(keys.under_key(7), holes.encode([Hole("b1", 3, None), Hole("b2", 0, 5)])),
                Put(keys.on_key("b1", 7), b""),
                Put(keys.on_key("b2", 8), b""),
                Delete(keys.bookie_key("b2")),
            ),
        )
    )

    assert [one async for one in leaving.shortages(metadata)] == [
        Shortage(7, "b1", 3, None, "noted"),
        Shortage(7, "b2", 0, 5, "noted"),
        Shortage(8, "b2", 0, None, "bookie is down"),
    ]
