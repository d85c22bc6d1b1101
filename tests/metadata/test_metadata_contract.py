"""What the parts above may rely on, whoever answers: the state machine in the process, or a quorum."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import trio

from distributedlog.metadata.model.interface import Metadata, Scan, Watch, WatchEvent, prefix_end
from distributedlog.metadata.model.transaction import (
    BYTES_MAX,
    Compare,
    Delete,
    KeyValue,
    Put,
    Transaction,
    TransactionReply,
)
from distributedlog.metadata.state.kv_state import KeyValueState
from distributedlog.runtime.interfaces.errors import (
    Compacted,
    InvalidRequest,
    LeaseExpired,
    TransactionTooLarge,
)
from tests.metadata.local_metadata import LocalMetadata

from .quorum import put, quorum

NewClient = Callable[[], Awaitable[Metadata]]


@pytest.fixture(params=["local", "one voter", "three voters"])
async def new_client(request: pytest.FixtureRequest) -> AsyncIterator[NewClient]:
    """Makes clients of one key space, empty at first."""
    if request.param == "local":
        local = LocalMetadata(KeyValueState())

        async def same() -> Metadata:
            return local

        yield same
    else:
        async with quorum(1 if request.param == "one voter" else 3) as nodes:
            await nodes.start()

            async def another() -> Metadata:
                return await nodes.client()

            yield another


@pytest.fixture
async def metadata(new_client: NewClient) -> Metadata:
    return await new_client()


def puts(*pairs: tuple[bytes, bytes], lease: int = 0) -> Transaction:
    return Transaction((), tuple(Put(key, value, lease) for key, value in pairs))


async def told(watch: Watch, count: int) -> list[WatchEvent]:
    """The next ``count`` changes of a watch."""
    events: list[WatchEvent] = []
    with trio.fail_after(10):
        while len(events) < count:
            batch = await watch.next_batch()
            assert batch.events, "a batch is never empty"
            assert batch.revision >= batch.events[-1].item.mod_revision
            events += batch.events
    assert len(events) == count
    return events


def short(events: list[WatchEvent]) -> list[tuple[str, bytes, int]]:
    return [(event.kind, event.item.key, event.item.mod_revision) for event in events]


# --- keys -----------------------------------------------------------------------------------------


async def test_a_key_is_found_as_it_was_put(metadata: Metadata, autojump_clock: object) -> None:
    assert await metadata.get(b"a") is None
    assert await metadata.transact(puts((b"a", b"1"))) == TransactionReply(True, 1)
    assert await metadata.transact(puts((b"b", b""), (b"a", b"2"))) == TransactionReply(True, 2)
    assert await metadata.get(b"a") == KeyValue(b"a", b"2", 2, 1, 2, 0)
    assert await metadata.get(b"b") == KeyValue(b"b", b"", 1, 2, 2, 0)


async def test_what_one_client_changed_another_one_finds(
    metadata: Metadata, new_client: NewClient, autojump_clock: object
) -> None:
    """M2."""
    other = await new_client()
    for number in range(1, 6):
        await metadata.transact(puts((b"a", b"%d" % number)))
        found = await other.get(b"a")
        assert found is not None
        assert found.version == number


async def test_a_range_is_read_in_pages(metadata: Metadata, autojump_clock: object) -> None:
    keys = [b"k/%02d" % n for n in range(10)]
    await metadata.transact(puts(*((key, b"v") for key in reversed(keys)), (b"z", b"")))
    pages = []
    start: bytes | None = b"k/"
    while start is not None:
        page = await metadata.range(start, prefix_end(b"k/"), limit=4)
        assert page.revision == 1
        pages.append([item.key for item in page.items])
        start = pages[-1][-1] + b"\0" if page.more else None

    assert pages == [keys[:4], keys[4:8], keys[8:]]
    assert (await metadata.range(b"k/03", b"k/05")).items == tuple(
        KeyValue(key, b"v", 1, 1, 1, 0) for key in keys[3:5]
    )
    assert (await metadata.range(b"x", b"y")).items == ()


async def test_a_page_of_large_values_is_cut_and_says_so(
    metadata: Metadata, autojump_clock: object
) -> None:
    for n in range(4):
        await metadata.transact(puts((b"k%d" % n, bytes(600_000))))
    page = await metadata.range(b"k", b"l")
    assert page.more
    assert 1 <= len(page.items) < 4
    found = [item.key async for item in Scan(metadata, b"k")]

    assert found == [b"k0", b"k1", b"k2", b"k3"]


async def test_a_scan_finds_all_keys_of_a_prefix_or_of_a_range(
    metadata: Metadata, autojump_clock: object
) -> None:
    keys = [b"k/%02d" % n for n in range(10)]
    await metadata.transact(puts(*((key, b"v") for key in keys), (b"k0", b""), (b"j", b"")))

    for limit in (1, 3, 5, 10, 11):  # also with a page that ends just where the keys do
        scan = Scan(metadata, b"k/", limit=limit)
        assert [item.key async for item in scan] == keys
        assert scan.revision == 1
        assert [item.key async for item in scan] == [], "once"
        scan = Scan(metadata, keys[2], keys[7], limit=limit)
        assert [item.key async for item in scan] == keys[2:7]
    empty = Scan(metadata, b"x")
    assert [item async for item in empty] == []
    assert empty.revision == 1


async def test_a_scan_meets_what_changes_after_its_page_and_no_key_twice(
    metadata: Metadata, autojump_clock: object
) -> None:
    await metadata.transact(puts(*((b"k%d" % n, b"old") for n in (0, 2, 3, 4, 5))))
    scan = Scan(metadata, b"k", limit=2)
    found = []
    async for item in scan:
        found.append((item.key, item.value))
        if len(found) == 1:  # k0 and k2 are read
            changed = puts(*((b"k%d" % n, b"new") for n in (0, 1, 2, 4, 6)))
            await metadata.transact(changed)
            await metadata.transact(Transaction((), (Delete(b"k3"),)))

    old, new = [b"k0", b"k2"], [b"k4", b"k6"]
    assert found == sorted(
        [(key, b"old") for key in [*old, b"k5"]] + [(key, b"new") for key in new]
    )
    assert scan.revision == 1, "a watch from there tells of k1 and k3, and of the others again"


# --- transactions ---------------------------------------------------------------------------------


async def test_a_condition_that_does_not_hold_refuses_all_and_shows_the_keys(
    metadata: Metadata, autojump_clock: object
) -> None:
    await metadata.transact(puts((b"a", b"1")))
    compares = (Compare.version(b"a", 1), Compare.exists(b"b"), Compare.mod_revision(b"a", 1))
    reply = await metadata.transact(Transaction(compares, (Delete(b"a"), Put(b"c", b""))))

    item = KeyValue(b"a", b"1", 1, 1, 1, 0)
    assert reply == TransactionReply(False, 1, (item, None, item))
    assert await metadata.get(b"a") == item
    assert await metadata.get(b"c") is None


async def test_conditions_that_hold_let_all_happen_at_one_revision(
    metadata: Metadata, autojump_clock: object
) -> None:
    await metadata.transact(puts((b"a", b"1"), (b"b", b"1")))
    compares = (Compare.version(b"a", 1), Compare.version(b"c", 0))
    reply = await metadata.transact(Transaction(compares, (Delete(b"a"), Put(b"c", b""))))

    assert reply == TransactionReply(True, 2)
    assert await metadata.get(b"a") is None
    assert await metadata.get(b"c") == KeyValue(b"c", b"", 1, 2, 2, 0)


async def test_what_changes_nothing_is_no_revision(
    metadata: Metadata, autojump_clock: object
) -> None:
    assert await metadata.transact(Transaction((), (Delete(b"a"),))) == TransactionReply(True, 0)
    assert await metadata.transact(Transaction()) == TransactionReply(True, 0)


async def test_what_cannot_be_done_is_refused_before_it_is_sent(
    metadata: Metadata, autojump_clock: object
) -> None:
    with pytest.raises(TransactionTooLarge):
        await metadata.transact(puts((b"a", bytes(BYTES_MAX))))
    with pytest.raises(InvalidRequest, match="twice"):
        await metadata.transact(puts((b"a", b"1"), (b"a", b"2")))
    assert await metadata.get(b"a") is None


async def test_a_number_or_a_range_that_cannot_be_is_refused_before_it_is_sent(
    metadata: Metadata, autojump_clock: object
) -> None:
    """A node ends the connection of a client that sends it: its other requests would be unknown."""
    for ttl_ms in (-1, 1 << 63, 1 << 70_000, True, 1.5):
        with pytest.raises(InvalidRequest, match="ttl of a lease"):
            await metadata.grant_lease(ttl_ms)  # type: ignore[arg-type]
    for start, end, revision in (
        (b"a", b"b", -1),
        (b"a", b"b", 1 << 63),
        ("a", b"b", 0),
        (b"a" * 5000, b"b", 0),
    ):
        with pytest.raises(InvalidRequest):
            async with metadata.watch(start, end, after_revision=revision):  # type: ignore[arg-type]
                pass
    assert (await metadata.transact(put(b"k", b"v"))).succeeded


async def test_the_largest_transaction_passes(metadata: Metadata, autojump_clock: object) -> None:
    """H13: 4,096 operations."""
    keys = [b"%04d" % n for n in range(4096)]
    assert (await metadata.transact(puts(*((key, b"v") for key in keys)))).succeeded
    reply = await metadata.transact(Transaction(tuple(Compare.version(key, 2) for key in keys)))

    assert not reply.succeeded
    assert [item.key for item in reply.current if item is not None] == keys


async def test_what_does_not_fit_an_answer_is_refused(
    metadata: Metadata, autojump_clock: object
) -> None:
    for key in (b"a", b"b"):
        await metadata.transact(puts((key, bytes(600_000))))
    both = (Compare.version(b"a", 2), Compare.version(b"b", 2))
    with pytest.raises(TransactionTooLarge):
        await metadata.transact(Transaction(both))


async def test_clients_that_count_together_lose_nothing(
    metadata: Metadata, new_client: NewClient, autojump_clock: object
) -> None:
    """M2."""
    won: list[int] = []

    async def count(client: Metadata) -> None:
        for _ in range(10):
            while True:
                found = await client.get(b"n")
                value, version = (int(found.value), found.version) if found else (0, 0)
                put = Put(b"n", b"%d" % (value + 1))
                reply = await client.transact(
                    Transaction((Compare.version(b"n", version),), (put,))
                )
                if reply.succeeded:
                    won.append(value + 1)
                    break

    async with trio.open_nursery() as nursery:
        for client in (metadata, await new_client(), await new_client()):
            nursery.start_soon(count, client)

    assert sorted(won) == list(range(1, 31))
    found = await metadata.get(b"n")
    assert found is not None
    assert found.value == b"30"


# --- leases ---------------------------------------------------------------------------------------


async def test_a_lease_that_nobody_renews_ends_with_its_keys_at_once(
    metadata: Metadata, autojump_clock: object
) -> None:
    """M7: not before its time, and not long after it; all its keys at one revision."""
    lease = await metadata.grant_lease(1000)
    await metadata.transact(puts((b"b", b""), (b"a", b""), lease=lease))
    began = trio.current_time()
    async with metadata.watch(b"a", b"c", after_revision=1) as watch:
        events = await told(watch, 2)

    assert short(events) == [("delete", b"a", 2), ("delete", b"b", 2)]
    assert 0.9 <= trio.current_time() - began <= 3
    with pytest.raises(LeaseExpired):
        await metadata.renew_lease(lease)


async def test_a_lease_that_is_renewed_lives(metadata: Metadata, autojump_clock: object) -> None:
    lease = await metadata.grant_lease(1000)
    await metadata.transact(puts((b"a", b""), lease=lease))
    for _ in range(10):
        await trio.sleep(0.5)
        await metadata.renew_lease(lease)

    found = await metadata.get(b"a")
    assert found is not None
    assert found.lease == lease


async def test_a_lease_that_is_revoked_ends_at_once(
    metadata: Metadata, autojump_clock: object
) -> None:
    lease, other = await metadata.grant_lease(10_000), await metadata.grant_lease(10_000)
    await metadata.transact(puts((b"a", b""), lease=lease))
    await metadata.transact(puts((b"b", b""), lease=other))
    await metadata.revoke_lease(lease)

    assert await metadata.get(b"a") is None
    assert await metadata.get(b"b") is not None
    await metadata.revoke_lease(lease)
    with pytest.raises(LeaseExpired):
        await metadata.transact(puts((b"a", b""), lease=lease))


async def test_a_key_put_again_without_its_lease_stays(
    metadata: Metadata, autojump_clock: object
) -> None:
    lease = await metadata.grant_lease(500)
    await metadata.transact(puts((b"a", b"1"), lease=lease))
    await metadata.transact(puts((b"a", b"2")))
    await trio.sleep(5)

    found = await metadata.get(b"a")
    assert found is not None
    assert found.lease == 0


# --- watches --------------------------------------------------------------------------------------


async def test_a_watch_tells_all_changes_in_order_from_a_revision_on(
    metadata: Metadata, autojump_clock: object
) -> None:
    """M6: those before it began and those after, once each; none of other keys."""
    for n in range(1, 6):
        await metadata.transact(puts((b"k", b"%d" % n), (b"other", b"")))
    async with metadata.watch(b"k", b"l", after_revision=2) as watch:
        assert short(await told(watch, 3)) == [("put", b"k", n) for n in (3, 4, 5)]
        await metadata.transact(Transaction((), (Delete(b"k"),)))
        assert short(await told(watch, 1)) == [("delete", b"k", 6)]


async def test_a_watch_that_waits_is_woken(
    metadata: Metadata, new_client: NewClient, autojump_clock: object
) -> None:
    writer = await new_client()
    found: list[WatchEvent] = []

    async def follow() -> None:
        async with metadata.watch(b"k", b"l", after_revision=0) as watch:
            found.extend(await told(watch, 20))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow)
        for n in range(20):
            await trio.sleep(0.05)
            await writer.transact(puts((b"k", b"%d" % n)))

    assert [event.item.value for event in found] == [b"%d" % n for n in range(20)]


async def test_the_changes_of_one_transaction_come_in_one_batch(
    metadata: Metadata, autojump_clock: object
) -> None:
    """M6: a consumer never sees half of one."""
    async with metadata.watch(b"a", b"s", after_revision=0) as watch:
        await metadata.transact(puts(*((b"k%03d" % n, b"") for n in range(500))))
        with trio.fail_after(10):
            batch = await watch.next_batch()

    assert len(batch.events) == 500


async def test_a_watch_from_a_forgotten_revision_is_told_so(
    metadata: Metadata, autojump_clock: object
) -> None:
    """H29: list, then watch from there."""
    for _ in range(10):
        await metadata.transact(puts((b"k", bytes(1_000_000))))
    async with metadata.watch(b"k", b"l", after_revision=1) as watch:
        with pytest.raises(Compacted), trio.fail_after(10):
            await watch.next_batch()
    page = await metadata.range(b"k", b"l")
    async with metadata.watch(b"k", b"l", after_revision=page.revision) as watch:
        await metadata.transact(puts((b"k", b"")))
        assert short(await told(watch, 1)) == [("put", b"k", 11)]


async def test_a_quiet_watch_that_is_connected_is_never_compacted(
    metadata: Metadata, new_client: NewClient, autojump_clock: object
) -> None:
    """H29: what does not concern it moves it on."""
    writer = await new_client()
    found: list[WatchEvent] = []

    async def follow() -> None:
        async with metadata.watch(b"q", b"r", after_revision=0) as watch:
            found.extend(await told(watch, 1))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow)
        await trio.sleep(0.1)
        for _ in range(10):
            await writer.transact(puts((b"k", bytes(1_000_000))))
        await writer.transact(puts((b"q", b"")))

    assert short(found) == [("put", b"q", 11)]


# --- status ---------------------------------------------------------------------------------------


async def test_the_status_names_all_nodes_and_one_leader(
    metadata: Metadata, autojump_clock: object
) -> None:
    await metadata.transact(puts((b"k", b"")))
    rows = await metadata.status()

    assert [row.role for row in rows].count("leader") == 1
    assert all(row.alive for row in rows)
    assert len({row.node_id for row in rows}) == len(rows)
    leader = next(row for row in rows if row.role == "leader")
    assert leader.applied >= 1
