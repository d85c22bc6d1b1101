"""What every `OrderedMap` does, LMDB, in memory and simulated (distributedlog/runtime/interfaces/host.py)."""

import random
from bisect import bisect_right

import pytest
import trio

from distributedlog.runtime.interfaces.errors import AlreadyClosed
from distributedlog.runtime.interfaces.host import Disk
from tests.runtime.contract_sides import DiskWorld


async def test_a_new_map_is_empty(disk: Disk) -> None:
    index = await disk.open_map("index")

    assert index.get(b"a") is None
    assert index.floor(b"\xff") is None
    assert index.scan(b"", b"\xff", 10) == []
    assert disk.list() == []  # maps are no files
    index.close()


async def test_pairs_are_found_by_key_order_and_floor(disk: Disk) -> None:
    index = await disk.open_map("index")

    await index.apply([(b"b", b"2"), (b"d", b"4"), (b"bb", b""), (b"\0", b"zero")])

    assert index.get(b"b") == b"2"
    assert index.get(b"bb") == b""
    assert index.get(b"c") is None
    assert index.floor(b"b") == (b"b", b"2")
    assert index.floor(b"c") == (b"bb", b"")
    assert index.floor(b"z") == (b"d", b"4")
    assert index.floor(b"\0\0") == (b"\0", b"zero")
    assert index.scan(b"b", b"d", 10) == [(b"b", b"2"), (b"bb", b"")]
    assert index.scan(b"", b"z", 2) == [(b"\0", b"zero"), (b"b", b"2")]
    assert index.scan(b"c", b"c", 10) == []
    assert index.scan(b"e", b"z", 10) == []
    assert index.scan(b"", b"z", 0) == []
    index.close()


async def test_floor_below_the_first_key(disk: Disk) -> None:
    index = await disk.open_map("index")
    await index.apply([(b"m", b"1")])

    assert index.floor(b"a") is None
    assert index.floor(b"m\0") == (b"m", b"1")
    index.close()


async def test_a_key_deleted_and_put_in_one_transaction_is_put(disk: Disk) -> None:
    """An index that splits a run deletes and puts at one key (H8)."""
    index = await disk.open_map("index")
    await index.apply([(b"run", b"old"), (b"gone", b"x")])

    await index.apply([(b"run", b"first"), (b"run", b"last")], [b"run", b"gone", b"never there"])

    assert index.scan(b"", b"\xff", 10) == [(b"run", b"last")]
    index.close()


async def test_the_next_look_sees_what_was_applied(disk_world: DiskWorld) -> None:
    index = await disk_world.look().open_map("index")
    await index.apply([(b"k", b"v")])
    index.close()

    again = await disk_world.look().open_map("index")

    assert again.get(b"k") == b"v"
    again.close()


async def test_a_restart_beside_a_leaked_handle_works(disk_world: DiskWorld) -> None:
    """H38: a node that is started again in one process, while the old one never closed its map."""
    leaked = await disk_world.look().open_map("index")
    await leaked.apply([(b"k", b"v")])
    leaked.scan(b"", b"\xff", 1)

    again = await disk_world.look().open_map("index")
    await again.apply([(b"k", b"w")])

    assert again.get(b"k") == b"w"
    again.close()
    leaked.close()


async def test_deleted_maps_are_empty_when_made_again(disk: Disk) -> None:
    index = await disk.open_map("index")
    other = await disk.open_map("other")
    await index.apply([(b"k", b"v")])
    await other.apply([(b"k", b"other")])
    index.close()

    await disk.delete_map("index")
    await disk.delete_map("index")
    await disk.delete_map("never there")

    again = await disk.open_map("index")
    assert again.get(b"k") is None
    assert other.get(b"k") == b"other"
    again.close()
    other.close()


async def test_an_open_map_is_not_deleted(disk: Disk) -> None:
    index = await disk.open_map("index")

    with pytest.raises(AssertionError):
        await disk.delete_map("index")

    index.close()


async def test_a_closed_map_says_so(disk: Disk) -> None:
    index = await disk.open_map("index")
    index.close()
    index.close()

    with pytest.raises(AlreadyClosed):
        index.get(b"k")
    with pytest.raises(AlreadyClosed):
        index.floor(b"k")
    with pytest.raises(AlreadyClosed):
        index.scan(b"", b"k", 1)
    with pytest.raises(AlreadyClosed):
        await index.apply([(b"k", b"v")])


@pytest.mark.parametrize("key", [b"", b"k" * 512])
async def test_keys_have_1_to_511_bytes(disk: Disk, key: bytes) -> None:
    index = await disk.open_map("index")

    with pytest.raises(AssertionError):
        await index.apply([(b"other", b""), (key, b"v")])

    assert index.scan(b"\0", b"\xff", 10) == []  # all or nothing
    await index.apply([(b"k" * 511, b"v" * 100_000)])
    assert index.get(b"k" * 511) == b"v" * 100_000
    index.close()


async def test_transactions_keep_their_order(disk: Disk) -> None:
    index = await disk.open_map("index")

    async with trio.open_nursery() as nursery:
        for n in range(20):
            nursery.start_soon(index.apply, [(b"last", b"%d" % n), (b"%02d" % n, b"")])

    assert len(index.scan(b"0", b"3", 100)) == 20
    assert index.get(b"last") is not None
    index.close()


async def test_a_reader_sees_whole_transactions_only(disk: Disk) -> None:
    index = await disk.open_map("index")
    await index.apply([(b"a", b"0"), (b"b", b"0")])
    done = False

    async def write() -> None:
        nonlocal done
        for n in range(30):
            await index.apply([(b"a", b"%d" % n), (b"b", b"%d" % n)])
        done = True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        while not done:
            (_, a), (_, b) = index.scan(b"a", b"c", 2)
            assert a == b
            await trio.lowlevel.checkpoint()
    index.close()


async def test_a_cancelled_apply_has_done_nothing_or_all(disk: Disk) -> None:
    index = await disk.open_map("index")

    with trio.CancelScope() as scope:
        scope.cancel()
        await index.apply([(b"k", b"v")])

    assert scope.cancelled_caught
    assert index.get(b"k") is None
    index.close()


@pytest.mark.parametrize("seed", range(3))
async def test_any_history_equals_a_dict(disk_world: DiskWorld, seed: int) -> None:
    draw = random.Random(seed)
    index = await disk_world.look().open_map("index")
    model: dict[bytes, bytes] = {}

    def key() -> bytes:
        return b"%03d" % draw.randrange(120)

    for _ in range(12):
        puts = [(key(), draw.randbytes(draw.randrange(50))) for _ in range(draw.randrange(30))]
        deletes = [key() for _ in range(draw.randrange(12))]
        await index.apply(puts, deletes)
        for gone in deletes:
            model.pop(gone, None)
        model.update(puts)
        if draw.random() < 0.3:
            index.close()
            index = await disk_world.look().open_map("index")

        keys = sorted(model)
        for _ in range(10):
            at = key()
            place = bisect_right(keys, at)
            floor = (keys[place - 1], model[keys[place - 1]]) if place else None
            assert index.get(at) == model.get(at)
            assert index.floor(at) == floor
            end, limit = key(), draw.randrange(20)
            expected = [(k, model[k]) for k in keys if at <= k < end][:limit]
            assert index.scan(at, end, limit) == expected
    index.close()
