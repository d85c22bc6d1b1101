"""Files that were lost whole: what was acknowledged is read, or nobody says that it is not there (H80)."""

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import trio
import trio.testing

from distributedlog.bookie.format.journal_format import (
    FILE_NUMBER_MAX,
    IDENTITY_FILE_NAME,
    file_name,
)
from distributedlog.bookie.ledgers.ledger_table import LIMBO_ALL
from distributedlog.bookie.store.bookie_store import BookieStore
from distributedlog.bookie.store.startup import open_store
from distributedlog.cluster.coordination.journal_sync_point import SEQUENCE_MAX, JournalSyncPoint
from distributedlog.runtime.interfaces.errors import (
    CorruptData,
    DiskFailed,
    LedgerFenced,
    LedgerStateUnknown,
    NoSuchLedger,
)
from tests.examples import few

from .kit import (
    KEY,
    MANUAL,
    Adder,
    CutDisk,
    CutFile,
    PowerCut,
    add_acked,
    dies_at_step,
    fence,
    host_of,
    journal_names,
    read_all,
    record,
    running,
)

Clock = trio.testing.MockClock
CHECKPOINTS = ["none", "between", "at the end"]


@dataclass
class Served:
    """A bookie's disks after it served, was killed, and lost all that was not synced."""

    journal: CutDisk
    index: CutDisk
    acked: dict[int, list[bytes]]
    fenced: list[int]
    durable_to: int
    older: dict[str, bytes]
    """The journal's files in the middle of it all."""
    older_index: CutDisk


def _content(disk: CutDisk) -> dict[str, bytes]:
    return {name: bytes(content.data) for name, content in disk._files.items()}


def _put(disk: CutDisk, name: str, data: bytes, size: int) -> None:
    """Replace a file's bytes, behind everybody's back."""
    content = disk._files[name]
    content.data[:] = data
    content.size = size


async def _serve(checkpoint: str) -> Served:
    """Two starts; the second fills some files and fences, with a checkpoint somewhere or not."""
    journal, index = CutDisk(), CutDisk()
    acked: dict[int, list[bytes]] = {}
    fenced: list[int] = []

    async def write(store: BookieStore, ledger: int, count: int) -> None:
        adder = await add_acked(store, ledger, count, 3000, apart_s=0.001)
        acked[ledger] = adder.sent
        fenced.append(ledger + 100)
        await fence(store, ledger + 100)

    async with running(journal, MANUAL, index) as store:
        await write(store, 1, 20)
    async with running(journal, MANUAL, index) as store:
        await write(store, 2, 60)
        await write(store, 3, 3)
        older, older_index = _content(journal), copy.deepcopy(index)
        await write(store, 4, 3)
        if checkpoint == "between":
            await store.checkpoint()
        await write(store, 5, 60)
        await write(store, 6, 3)
        if checkpoint == "at the end":
            await store.checkpoint()
        await write(store, 7, 2)
        durable_to = store.durable_to
        journal = journal.cut(random.Random(1), survive=0.0)
    return Served(journal, index, acked, fenced, durable_to, older, older_index)


def _copied(served: Served) -> Served:
    """The same disks once more."""
    journal = copy.deepcopy(served.journal)
    return replace(served, journal=journal, index=copy.deepcopy(served.index))


async def _judge(served: Served, witnessed: int) -> tuple[str, int]:
    """Start; nothing acknowledged may be denied, no fence forgotten. Why it is in limbo, how much is read."""
    read, reason = 0, ""
    for _ in range(2):  # what was marked stays marked
        store = await open_store(
            host_of(served.journal, served.index),
            MANUAL,
            bookie_id="b1",
            recorded_sequence=witnessed,
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            for ledger, records in served.acked.items():
                read += await _read(store, ledger, records)
            for ledger in (*served.fenced, *served.acked):
                adder = Adder(store, ledger)
                adder.send(record(ledger, 1000))
                if ledger in served.fenced:
                    error, _ = await adder.refusal()
                    assert isinstance(error, LedgerFenced | LedgerStateUnknown)
            if store.limbo.any_limbo:
                reason = reason or store.limbo.cause
            assert bool(reason) == store.limbo.any_limbo
            nursery.cancel_scope.cancel()
    return reason, read // 2


async def _read(store: BookieStore, ledger: int, records: list[bytes]) -> int:
    """How many of the records are read; the others must be unknown, each by itself."""
    try:
        known = store.ledgers.get_known(ledger, KEY)
    except LedgerStateUnknown:
        return 0
    read = 0
    for n, sent in enumerate(records):
        try:
            found = await read_all(store, ledger, n, n)
        except CorruptData:
            continue
        assert found or known.limbo, f"ledger {ledger}: acknowledged entry {n} is denied"
        assert found in ({}, {n: sent})
        read += len(found)
    return read


def _emptied(served: Served, name: str) -> None:
    _put(served.journal, name, b"", 0)


def _cut_to_a_page(served: Served, name: str) -> None:
    _put(served.journal, name, bytes(served.journal._files[name].data[:4096]), 4096)


def _zeroed(served: Served, name: str) -> None:
    _put(served.journal, name, b"", served.journal._files[name].size)


def _deleted(served: Served, name: str) -> None:
    del served.journal._files[name], served.journal.files[name]


def _older(served: Served, name: str) -> None:
    _put(served.journal, name, served.older.get(name, b""), served.journal._files[name].size)


def _swapped(served: Served, name: str) -> None:
    files = served.journal._files
    names = journal_names(served.journal)
    other = names[names.index(name) - 1] if name in names else names[-1]
    first, second = bytes(files[name].data), bytes(files[other].data)
    _put(served.journal, name, second, files[other].size)
    _put(served.journal, other, first, len(first))


DAMAGES: list[Callable[[Served, str], None]] = [
    _emptied,
    _cut_to_a_page,
    _zeroed,
    _deleted,
    _older,
    _swapped,
]


@pytest.mark.properties
@pytest.mark.parametrize("lost_index", [False, True])
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
async def test_no_file_that_is_lost_whole_makes_a_bookie_deny_what_it_acknowledged(
    autojump_clock: Clock,
    checkpoint: str,
    damage: Callable[[Served, str], None],
    lost_index: bool,
) -> None:
    """H80: each file in turn, the seed's included; the cluster knows how far the journal was synced."""
    first = await _serve(checkpoint)
    for name in [*journal_names(first.journal), IDENTITY_FILE_NAME]:
        if lost_index and name == IDENTITY_FILE_NAME:
            continue  # it does not start then; see test_startup.py
        served = _copied(first)
        damage(served, name)
        if lost_index:
            served.index = CutDisk()

        await _judge(served, served.durable_to)


@pytest.mark.parametrize("damage", [each for each in DAMAGES if each is not _older])
@pytest.mark.parametrize("checkpoint", few(CHECKPOINTS, 1))
async def test_the_newest_file_is_missed_by_what_the_disks_know_alone(
    autojump_clock: Clock, checkpoint: str, damage: Callable[[Served, str], None]
) -> None:
    """H80: what sealed the file before says that there was one; so does the index."""
    served = await _serve(checkpoint)
    newest = [name for name in journal_names(served.journal) if served.journal._files[name].data]

    damage(served, newest[-1])
    reason, read = await _judge(served, 0)

    assert reason
    assert read > 60  # what was not lost is read


@pytest.mark.parametrize("damage", [each for each in DAMAGES if each is not _older])
async def test_an_older_file_is_missed_at_the_start_and_not_at_a_read(
    autojump_clock: Clock, damage: Callable[[Served, str], None]
) -> None:
    """L8: a copy that is gone is made again only where somebody knows; no start replays that file."""
    served = await _serve("at the end")
    async with running(served.journal, MANUAL, served.index) as store:
        await store.checkpoint()

    damage(served, journal_names(served.journal)[0])
    reason, read = await _judge(served, 0)

    assert "journal file 1 " in reason
    assert read > 0


@pytest.mark.parametrize("damage", [_emptied, _zeroed, _deleted])
@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
async def test_what_lay_in_a_file_of_which_nothing_is_left_can_be_copied_here_again(
    autojump_clock: Clock, checkpoint: str, damage: Callable[[Served, str], None]
) -> None:
    """L8: the index does not go on to name what is gone; forgotten no sooner than limbo is durable."""
    served = await _serve(checkpoint)
    newest = [name for name in journal_names(served.journal) if served.journal._files[name].data]
    damage(served, newest[-1])
    damage(served, newest[-2])

    async with running(served.journal, MANUAL, served.index) as store:
        for ledger, records in served.acked.items():
            healing = Adder(store, ledger, recovery=True)
            for sent in records:
                healing.send(sent)
            await healing.all_acked()
    async with running(served.journal, MANUAL, served.index) as store:
        for ledger, records in served.acked.items():
            assert list((await read_all(store, ledger)).values()) == records
            assert store.ledgers.get_known(ledger, KEY).limbo
        live = store._index.live_bytes

        assert sum(live.values()) == sum(len(r) for rs in served.acked.values() for r in rs)
        assert all(length >= 0 for length in live.values())


@pytest.mark.parametrize("lost_index", [False, True])
@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
async def test_nothing_is_in_limbo_where_nothing_was_lost(
    autojump_clock: Clock, checkpoint: str, lost_index: bool
) -> None:
    served = await _serve(checkpoint)
    if lost_index:
        served.index = CutDisk()

    assert await _judge(served, served.durable_to) == ("", sum(map(len, served.acked.values())))


async def test_a_copy_of_both_disks_taken_while_it_ran_is_known_for_one(
    autojump_clock: Clock,
) -> None:
    """H80: whole in itself, and of the same start: only the cluster knows better, and it says so."""
    served = await _serve("at the end")
    for name, data in served.older.items():
        if name in served.journal._files:
            _put(served.journal, name, data, served.journal._files[name].size)
    for name in set(journal_names(served.journal)) - set(served.older):
        await served.journal.delete(name)
    served.index = served.older_index

    reason, read = await _judge(served, served.durable_to)

    assert f"the cluster has recorded that block {served.durable_to} was synced" in reason
    assert read == 83


async def test_an_index_that_is_an_older_copy_costs_nothing_or_is_limbo(
    autojump_clock: Clock,
) -> None:
    served = await _serve("at the end")
    served.index = served.older_index

    assert await _judge(served, served.durable_to) == ("", sum(map(len, served.acked.values())))


async def _one_of_many_alike(name: str, ledger: int) -> tuple[CutDisk, CutDisk, list[bytes]]:
    """One entry a block, and a clean end: what bookies that store the same look like."""
    journal, index = CutDisk(), CutDisk()
    host = host_of(journal, index, seed=ledger)
    store = await open_store(host, MANUAL, bookie_id=name)
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        adder = Adder(store, ledger)
        for n in range(5):
            adder.send(record(ledger, n))
            await adder.all_acked()
        await store.checkpoint()
        nursery.cancel_scope.cancel()
    return journal, index, adder.sent


async def test_an_index_of_another_bookies_is_built_again(autojump_clock: Clock) -> None:
    """H80: its position fits, block by block; by the journal's seed it is known for a stranger's."""
    journal, own, sent = await _one_of_many_alike("b1", 1)
    _, foreign, _ = await _one_of_many_alike("b2", 2)

    for index in (foreign, own):
        async with running(journal, MANUAL, index) as store:
            assert not store.limbo.any_limbo
            assert list((await read_all(store, 1)).values()) == sent
            with pytest.raises(NoSuchLedger):
                store.ledgers.get_known(2, KEY)


async def test_a_note_that_cannot_be_is_limbo_once_and_no_sequence(autojump_clock: Clock) -> None:
    """Whoever wrote it: the journal goes on where it ends, and the next note is sound again."""
    served = await _serve("between")

    store = await open_store(
        host_of(served.journal, served.index),
        MANUAL,
        bookie_id="b1",
        recorded_sequence=SEQUENCE_MAX - 1,
    )

    assert "that cannot be" in store.limbo.cause
    assert served.durable_to < store.durable_to < served.durable_to + 100
    assert (
        JournalSyncPoint.decode(b"seen/b1", JournalSyncPoint(3, store.durable_to).encode()).start
        == 3
    )
    store.close()


async def test_a_start_that_missed_data_and_dies_at_any_step_is_known_to_the_next(
    autojump_clock: Clock,
) -> None:
    """H80, H3: what the first one found, the second says."""
    steps, died = 0, True
    first = await _serve("between")
    while died:
        served = _copied(first)
        newest = [n for n in journal_names(served.journal) if served.journal._files[n].data][-1]
        _emptied(served, newest)
        died = await dies_at_step(steps, served.journal, served.index, MANUAL)
        served.journal = served.journal.cut(random.Random(steps), survive=0.0)

        reason, _ = await _judge(served, 0)

        assert reason, steps
        steps += 1
    assert steps > 10


@pytest.mark.properties
async def test_what_was_told_to_be_durable_is_found_after_a_power_cut_at_any_step(
    autojump_clock: Clock,
) -> None:
    """H82: the witness is taken after the sync, so no crash makes a false loss; rolls, starts and all."""
    steps, died = -3, True
    while died:
        steps += 3
        died = False
        journal, index = CutDisk(), CutDisk()
        told = 0
        acked: list[bytes] = []
        journal.fuse = steps
        try:
            for _ in range(2):
                store = await open_store(
                    host_of(journal, index), MANUAL, bookie_id="b1", recorded_sequence=told
                )
                told = max(told, store.durable_to)
                async with trio.open_nursery() as nursery:
                    await nursery.start(store.run)
                    adder = Adder(store, 7)
                    for n in range(len(acked), len(acked) + 40):
                        adder.send(record(7, n, bytes(3000)))
                        for _ in range(20):
                            await trio.lowlevel.checkpoint()
                            told = max(told, store.durable_to)
                        acked += adder.sent[adder.counted : adder.acked]
                        adder.counted = adder.acked
                    await adder.all_acked()
                    acked += adder.sent[adder.counted : adder.acked]
                    nursery.cancel_scope.cancel()
        except* PowerCut:
            died = True
        journal = journal.cut(random.Random(steps), survive=0.0)

        store = await open_store(
            host_of(journal, index), MANUAL, bookie_id="b1", recorded_sequence=told
        )

        assert not store.limbo.any_limbo, steps
        store.close()
    assert steps > 100


async def test_a_stretch_that_cannot_be_read_is_missing_and_no_torn_tail(
    autojump_clock: Clock,
) -> None:
    """One bad sector under the last acknowledged block: the bookie starts, and denies nothing."""
    served = await _serve("between")
    newest = [name for name in journal_names(served.journal) if served.journal._files[name].data]
    end = len(served.journal._files[newest[-1]].data)
    _rot(served.journal, newest[-1], end - 4096)

    reason, read = await _judge(served, 0)

    assert f"{newest[-1]} cannot be read" in reason
    assert read > 60


async def test_a_seed_that_cannot_be_read_is_restored_from_the_index(
    autojump_clock: Clock,
) -> None:
    served = await _serve("between")
    _rot(served.journal, IDENTITY_FILE_NAME, 0)

    assert await _judge(served, served.durable_to) == ("", sum(map(len, served.acked.values())))


async def test_a_file_that_cannot_be_opened_is_one_files_damage(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a start, and at the first cold read: the node lives, and keeps the file."""
    served = await _serve("between")
    names = [name for name in journal_names(served.journal) if served.journal._files[name].data]
    whole = CutDisk.open

    async def refuse(self: CutDisk, name: str) -> CutFile:
        if name in (names[0], names[-1]):
            raise DiskFailed(f"{name}: opening it failed: Permission denied (errno 13)")
        return await whole(self, name)

    monkeypatch.setattr(CutDisk, "open", refuse)
    served.journal.hot = False

    reason, read = await _judge(served, 0)

    assert f"{names[-1]} cannot be opened" in reason
    assert 0 < read < 128
    assert names[0] in served.journal.list()
    assert names[-1].replace("journal", "lost") in served.journal.list()


@pytest.mark.parametrize(
    "name", ["journal-999999999999", "journal-", "journal-1", "journal-١٢", "journal-000000000000"]
)
async def test_a_name_that_no_bookie_gives_is_left_alone(autojump_clock: Clock, name: str) -> None:
    served = await _serve("none")
    await served.journal.create(name, size=8192)

    reason, _ = await _judge(served, served.durable_to)

    assert reason == ""
    assert name in served.journal.list()


async def test_a_number_after_which_there_is_none_is_refused_by_name(
    autojump_clock: Clock,
) -> None:
    served = await _serve("none")
    await served.journal.create(file_name(FILE_NUMBER_MAX), size=8192)

    with pytest.raises(CorruptData, match=r"journal-002147483647 .* move it out"):
        await open_store(host_of(served.journal, served.index), MANUAL, bookie_id="b1")


async def test_a_lost_file_with_something_in_it_is_set_aside_and_a_limbo_is_for_all(
    autojump_clock: Clock,
) -> None:
    """What the operator may still want is not deleted; of zeros nothing is kept."""
    served = await _serve("between")
    names = [name for name in journal_names(served.journal) if served.journal._files[name].data]
    served.journal.flip(names[-1], 100)  # its head
    data = served.journal._files[names[-1]].data
    data[4096:] = data[:4096] * (len(data) // 4096 - 1)

    async with running(served.journal, MANUAL, served.index) as store:
        assert store.ledgers.limbo_below == LIMBO_ALL

    assert names[-1].replace("journal", "lost") in served.journal.list()
    assert names[-1] not in served.journal.list()


def _rot(disk: CutDisk, name: str, bad: int) -> None:
    """The device cannot read the page at ``bad`` of this file."""
    whole = disk.open

    async def opened(wanted: str) -> CutFile:
        file = await whole(wanted)
        if wanted == name:
            original = file.read_at

            def read_at(offset: int, length: int) -> bytes:
                if offset <= bad < offset + length:
                    raise CorruptData(f"{name}: read at {offset}: Input/output error (errno 5)")
                return original(offset, length)

            file.read_at = read_at  # type: ignore[method-assign]
        return file

    disk.open = opened  # type: ignore[method-assign, assignment]
