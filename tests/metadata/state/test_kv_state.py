"""The replicated state."""

import gc
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributedlog.metadata.model.command_results import (
    CommandResult,
    decode_answer,
    encode_answer,
)
from distributedlog.metadata.model.commands import (
    ExpireLease,
    GrantLease,
    ReplicatedCommand,
    RevokeLease,
    Transact,
    encode_command,
)
from distributedlog.metadata.model.interface import WatchEvent
from distributedlog.metadata.model.transaction import (
    BYTES_MAX,
    OPERATIONS_MAX,
    Compare,
    Delete,
    KeyValue,
    Put,
    Transaction,
    TransactionReply,
)
from distributedlog.metadata.state.kv_snapshot import (
    CHUNK_BYTES,
    KEY_ROW,
    SnapshotBuilder,
    snapshot_chunks,
)
from distributedlog.metadata.state.kv_snapshot import KEYS_CHUNK_MARKER as KEYS_OF_A_CHUNK
from distributedlog.metadata.state.kv_state import VALUE_HEADER, KeyValueState, pack_item
from distributedlog.metadata.state.request_dedup import REMEMBERED_REQUESTS
from distributedlog.runtime.interfaces.errors import (
    Compacted,
    CorruptData,
    InvalidRequest,
    LeaseExpired,
    OutcomeUnknown,
    TooBusy,
    TransactionTooLarge,
    UnsupportedFormat,
)
from distributedlog.runtime.protocol.frames import CONTROL_BYTES_MAX, pack, unpack
from tests.examples import examples

MIB = 1024 * 1024
NOTHING = Transaction()


def do(state: KeyValueState, command: ReplicatedCommand) -> CommandResult:
    return state.apply(state.index + 1, encode_command(command))[0]


def events_of(state: KeyValueState, command: ReplicatedCommand) -> list[tuple[str, bytes]]:
    _, events = state.apply(state.index + 1, encode_command(command))
    return [(event.kind, event.item.key) for event in events]


def put(*pairs: tuple[bytes, bytes], lease: int = 0) -> Transact:
    operations = tuple(Put(key, value, lease) for key, value in pairs)
    return Transact(transaction=Transaction((), operations))


def deleted(key: bytes) -> Transact:
    return Transact(transaction=Transaction((), (Delete(key),)))


def restore(chunks: Iterable[bytes], **bounds: int) -> KeyValueState:
    builder = SnapshotBuilder(KeyValueState(**bounds))
    for chunk in chunks:
        builder.add(chunk)
    return builder.finish()


def reply(answer: CommandResult) -> TransactionReply:
    assert answer.transaction is not None, answer.error
    return answer.transaction


# --- keys and revisions ---------------------------------------------------------------------------


def test_a_key_has_versions_and_the_state_revisions() -> None:
    state = KeyValueState()
    do(state, put((b"a", b"1")))
    do(state, put((b"b", b"1")))
    do(state, put((b"a", b"2")))

    assert state.get(b"a") == KeyValue(b"a", b"2", 2, 1, 3, 0)
    assert state.revision == 3


def test_a_key_that_is_made_again_begins_anew() -> None:
    state = KeyValueState()
    do(state, put((b"a", b"1")))
    do(state, put((b"a", b"2")))
    do(state, Transact(transaction=Transaction((), (Delete(b"a"),))))
    do(state, put((b"a", b"3")))

    assert state.get(b"a") == KeyValue(b"a", b"3", 1, 4, 4, 0)


def test_a_transaction_is_one_revision_and_one_that_changes_nothing_is_none() -> None:
    state = KeyValueState()
    do(state, put((b"a", b""), (b"b", b"")))
    found = reply(do(state, Transact(transaction=Transaction((), (Delete(b"x"),)))))

    assert found == TransactionReply(True, 1)


def test_a_refused_transaction_says_how_the_keys_are() -> None:
    state = KeyValueState()
    do(state, put((b"a", b"1")))
    compares = (Compare.version(b"a", 1), Compare.version(b"b", 1))
    found = reply(do(state, Transact(transaction=Transaction(compares, (Delete(b"a"),)))))

    assert found == TransactionReply(False, 1, (state.get(b"a"), None))
    assert state.get(b"a") is not None


def test_a_key_written_twice_changes_nothing() -> None:
    state = KeyValueState()
    answer = do(state, put((b"a", b"1"), (b"a", b"2")))

    assert isinstance(answer.error, InvalidRequest)
    assert state.revision == 0


def test_a_range_is_paged_by_keys_and_by_bytes() -> None:
    state = KeyValueState()
    do(state, put(*((b"%d" % n, bytes(100)) for n in range(9))))

    page = state.range(b"1", b"8", 3)
    assert ([item.key for item in page.items], page.more) == ([b"1", b"2", b"3"], True)
    page = state.range(b"5", b"8", 3)
    assert ([item.key for item in page.items], page.more) == ([b"5", b"6", b"7"], False)
    page = state.range(b"1", b"8", 9, bytes_max=250)
    assert ([item.key for item in page.items], page.more) == ([b"1", b"2"], True)
    page = state.range(b"1", b"8", 9, bytes_max=1)
    assert ([item.key for item in page.items], page.more) == ([b"1"], True)
    assert state.range(b"8", b"1", 9).items == ()


# --- requests that are sent again (H20) -----------------------------------------------------------


def test_a_request_sent_again_is_answered_again_and_not_done_again() -> None:
    """H20."""
    state = KeyValueState()
    change = Transact("c", 1, 0, Transaction((), (Put(b"a", b""),)))
    first = do(state, change)
    do(state, put((b"b", b"")))
    again = do(state, change)

    assert again == first
    assert state.get(b"a") == KeyValue(b"a", b"", 1, 1, 1, 0)
    assert (
        do(state, GrantLease("c", 2, 0, 1000)).lease
        == do(state, GrantLease("c", 2, 0, 1000)).lease
        == 1
    )


def test_a_refusal_sent_again_stays_one_and_says_how_the_keys_are_now() -> None:
    """H20: what it saw is not remembered: it may be a megabyte a request."""
    state = KeyValueState()
    change = Transact("c", 1, 0, Transaction((Compare.exists(b"a"),), (Put(b"b", b""),)))
    assert reply(do(state, change)) == TransactionReply(False, 0, (None,))
    do(state, put((b"a", b"1")))

    assert reply(do(state, change)) == TransactionReply(False, 1, (state.get(b"a"),))
    assert state.get(b"b") is None


def test_an_error_sent_again_is_the_same_error() -> None:
    state = KeyValueState()
    change = Transact("c", 1, 0, Transaction((), (Put(b"a", b"", 5),)))
    first, again = do(state, change), do(state, change)

    assert isinstance(first.error, LeaseExpired)
    assert isinstance(again.error, LeaseExpired)
    assert str(first.error) == str(again.error)


def test_a_request_that_may_be_forgotten_is_unknown_and_a_new_one_is_not() -> None:
    """H20, with a ring of 4: the ring says for certain which requests it never saw."""
    state = KeyValueState(requests_max=4)
    first = Transact("c", 1, 0, Transaction((), (Put(b"a", b"1"),)))
    do(state, first)
    for number in range(2, 6):
        do(state, Transact("c", number, state.index, NOTHING))

    assert isinstance(do(state, first).error, OutcomeUnknown)
    assert state.revision == 1
    assert do(state, Transact("d", 1, 1, NOTHING)).error is None
    assert isinstance(do(state, Transact("e", 1, 0, NOTHING)).error, OutcomeUnknown)


def test_an_answer_and_its_memory_are_small_however_large_the_values() -> None:
    """H20: 65,536 of them are kept in memory, and go into a snapshot."""
    state = KeyValueState()
    do(state, put((b"a", bytes(20_000))))
    for number in range(1, 1001):
        found = do(state, Transact("c", number, 0, Transaction((Compare.exists(b"a"),))))
        assert reply(found) == TransactionReply(True, 1)

    assert len(state.request_dedup) == 1000
    assert sum(map(len, snapshot_chunks(state))) < 100_000


def test_what_does_not_fit_an_answer_is_refused_the_same_way_again() -> None:
    """Leaving keys out as if they did not exist would be a lie."""
    state = KeyValueState()
    for key in (b"a", b"b"):
        do(state, put((key, bytes(MIB - 10))))
    compares = (Compare.version(b"a", 9), Compare.version(b"b", 9))
    change = Transact("c", 1, 0, Transaction(compares))

    assert isinstance(do(state, change).error, TransactionTooLarge)
    assert isinstance(do(state, change).error, TransactionTooLarge)
    assert list(snapshot_chunks(restore(snapshot_chunks(state)))) == list(snapshot_chunks(state))


def test_the_largest_answers_fit_a_message() -> None:
    state = KeyValueState()
    keys = [b"%04d" % n + bytes(16) for n in range(OPERATIONS_MAX)]
    value = bytes(MIB // OPERATIONS_MAX - 20)
    do(state, put(*((key, value) for key in keys)))
    compares = tuple(Compare.version(key, 9) for key in keys)
    answer = do(state, Transact(transaction=Transaction(compares)))

    assert len(reply(answer).current) == OPERATIONS_MAX
    assert decode_answer(encode_answer(answer)) == answer
    assert len(encode_answer(answer)) < CONTROL_BYTES_MAX - 1000


@pytest.mark.parametrize(
    "answer",
    [
        CommandResult(),
        CommandResult(lease=7),
        CommandResult(TransactionReply(True, 4)),
        CommandResult(TransactionReply(False, 4, (None, KeyValue(b"a", b"v", 1, 2, 3, 4)))),
    ],
    ids=str,
)
def test_an_answer_comes_back_from_its_bytes(answer: CommandResult) -> None:
    assert decode_answer(encode_answer(answer)) == answer


def test_an_error_comes_back_from_its_bytes() -> None:
    back = decode_answer(encode_answer(CommandResult(error=LeaseExpired("lease 3 is gone"))))

    assert isinstance(back.error, LeaseExpired)
    assert str(back.error) == "lease 3 is gone"


@pytest.mark.parametrize("value", [7, [], ["lease"], ["transaction", 1, 2, []], ["error", "x", 1]])
def test_an_answer_that_cannot_be_read_is_corrupt(value: object) -> None:
    with pytest.raises(CorruptData):
        decode_answer(pack(value))


# --- leases ---------------------------------------------------------------------------------------


def test_the_end_of_a_lease_deletes_its_keys_at_one_revision() -> None:
    state = KeyValueState()
    lease = do(state, GrantLease(ttl_ms=1000)).lease
    do(state, put((b"b", b""), (b"a", b""), lease=lease))
    do(state, put((b"c", b"")))

    assert events_of(state, ExpireLease(lease=lease)) == [("delete", b"a"), ("delete", b"b")]
    assert state.revision == 3
    assert list(state.keys) == [b"c"]
    assert events_of(state, ExpireLease(lease=lease)) == []


def test_a_key_put_without_its_lease_outlives_it() -> None:
    state = KeyValueState()
    lease = do(state, GrantLease(ttl_ms=1000)).lease
    do(state, put((b"a", b""), lease=lease))
    do(state, put((b"a", b"")))

    assert events_of(state, RevokeLease(lease=lease)) == []
    assert state.get(b"a") is not None


def test_lease_numbers_are_never_used_twice() -> None:
    """H19: a late `ExpireLease` must not end another lease."""
    state = KeyValueState()
    first = do(state, GrantLease(ttl_ms=1000)).lease
    do(state, RevokeLease(lease=first))

    assert do(restore(snapshot_chunks(state)), GrantLease(ttl_ms=1000)).lease == first + 1


def test_leases_are_bounded() -> None:
    state = KeyValueState(leases_max=2)
    granted = [do(state, GrantLease("c", number, 0, 1000)).lease for number in (1, 2)]

    assert isinstance(do(state, GrantLease("c", 3, 0, 1000)).error, TooBusy)
    do(state, RevokeLease(lease=granted[0]))
    assert do(state, GrantLease("c", 4, 0, 1000)).error is None


def test_the_keys_of_a_lease_are_bounded_as_a_transaction_is() -> None:
    """Their end is one revision, which must fit into one message to a watcher."""
    state = KeyValueState()
    lease = do(state, GrantLease(ttl_ms=1000)).lease
    keys = [b"%04d" % n for n in range(OPERATIONS_MAX)]
    do(state, put(*((key, b"") for key in keys), lease=lease))

    assert isinstance(do(state, put((b"x", b""), lease=lease)).error, TransactionTooLarge)
    assert do(state, put((keys[0], b"again"), lease=lease)).error is None
    do(state, Transact(transaction=Transaction((), (Delete(keys[0]),))))
    assert do(state, put((b"x", b""), lease=lease)).error is None

    wide = do(state, GrantLease(ttl_ms=1000)).lease
    for n in range(BYTES_MAX // 4096):
        do(state, put((b"%04d" % n + bytes(4092), b""), lease=wide))
    assert isinstance(do(state, put((b"y", b""), lease=wide)).error, TransactionTooLarge)


# --- watching -------------------------------------------------------------------------------------


def test_changes_are_told_by_range_and_revision() -> None:
    state = KeyValueState()
    do(state, put((b"a", b"1"), (b"x", b"1")))
    do(state, put((b"x", b"2")))
    do(state, Transact(transaction=Transaction((), (Delete(b"a"),))))
    created = KeyValue(b"a", b"1", 1, 1, 1, 0)
    deleted = KeyValue(b"a", b"", 1, 1, 3, 0)

    assert state.events_after(0, b"a", b"b") == [
        (1, (WatchEvent("put", created),)),
        (3, (WatchEvent("delete", deleted),)),
    ]
    assert state.events_after(1, b"a", b"b") == [(3, (WatchEvent("delete", deleted),))]
    assert state.events_after(3, b"a", b"b") == []


def test_forgotten_changes_are_a_definite_answer() -> None:
    """H29, with a history of a few events."""
    state = KeyValueState(history_bytes_max=1000)
    for _ in range(10):
        do(state, put((b"a", bytes(100))))

    with pytest.raises(Compacted):
        state.events_after(state.compacted_to - 1, b"a", b"b")
    kept = state.events_after(state.compacted_to, b"a", b"b")
    assert [at for at, _ in kept] == list(range(state.compacted_to + 1, 11))


def test_a_restored_state_serves_no_watch_of_before_it() -> None:
    """It knows no change up to its snapshot: "no changes" would be a gap for ever (M6; history.py)."""
    state = KeyValueState()
    for n in range(3):
        do(state, put((b"a", b"%d" % n)))
    other = restore(snapshot_chunks(state))

    for revision in (0, 1, 2):
        with pytest.raises(Compacted):
            other.events_after(revision, b"a", b"b")
    assert other.events_after(3, b"a", b"b") == []
    do(other, put((b"a", b"3")))
    assert [at for at, _ in other.events_after(3, b"a", b"b")] == [4]


# --- snapshots ------------------------------------------------------------------------------------

KEYS = st.sampled_from([b"a", b"b", b"c", b"d"])
VALUES = st.sampled_from([b"", b"v", bytes(2000), bytes(CHUNK_BYTES)])
LEASES = st.integers(0, 4)
COMPARES = st.one_of(
    st.builds(Compare.version, KEYS, st.integers(0, 2)), st.builds(Compare.exists, KEYS)
)
OPERATIONS = st.one_of(st.builds(Put, KEYS, VALUES, LEASES), st.builds(Delete, KEYS))
TRANSACTIONS = st.builds(
    lambda compares, operations: Transaction(tuple(compares), tuple(operations)),
    st.lists(COMPARES, max_size=2),
    st.lists(OPERATIONS, max_size=3),
)


def _commands(
    make: Callable[..., ReplicatedCommand], *content: Any
) -> st.SearchStrategy[ReplicatedCommand]:
    clients = st.sampled_from(["", "c", "\u6f22" * 64])
    return st.builds(make, clients, st.integers(1, 6), st.integers(0, 20), *content)


COMMANDS: st.SearchStrategy[ReplicatedCommand] = st.one_of(
    _commands(Transact, TRANSACTIONS),
    _commands(GrantLease, st.integers(0, 5000)),
    _commands(RevokeLease, LEASES),
    st.builds(lambda lease: ExpireLease(lease=lease), LEASES),
)


def small_state() -> KeyValueState:
    return KeyValueState(requests_max=4, leases_max=3)


def restored(chunks: list[bytes]) -> KeyValueState:
    return restore(chunks, requests_max=4, leases_max=3)


@settings(max_examples=examples(60))
@given(st.lists(COMMANDS, max_size=25), st.lists(COMMANDS, max_size=8))
def test_a_restored_state_is_equal_and_goes_on_equally(
    before: list[ReplicatedCommand], after: list[ReplicatedCommand]
) -> None:
    """M3: every reachable state, and every answer and event after it."""
    state = small_state()
    for command in before:
        do(state, command)
    chunks = list(snapshot_chunks(state))
    other = restored(chunks)

    assert list(snapshot_chunks(other)) == chunks
    for command in after:
        data = encode_command(command)
        ours, theirs = state.apply(state.index + 1, data), other.apply(other.index + 1, data)
        assert encode_answer(ours[0]) == encode_answer(theirs[0])
        assert ours[1] == theirs[1]
    assert list(snapshot_chunks(other)) == list(snapshot_chunks(state))


@settings(max_examples=examples(60))
@given(st.lists(COMMANDS, max_size=20), st.lists(COMMANDS, max_size=20), st.integers(0, 4))
def test_a_snapshot_shows_the_state_as_it_was(
    before: list[ReplicatedCommand], meanwhile: list[ReplicatedCommand], taken: int
) -> None:
    """H39: it is taken while the state goes on changing."""
    state = small_state()
    for command in before:
        do(state, command)
    expected = list(snapshot_chunks(state))
    chunks = snapshot_chunks(state)
    found = [chunk for _, chunk in zip(range(taken), chunks, strict=False)]
    for command in meanwhile:
        do(state, command)

    assert found + list(chunks) == expected


MANY = st.integers(0, 999).map(lambda n: b"%03d" % n)
MANY_CHANGES = st.lists(st.tuples(MANY, st.booleans()), max_size=40)


@settings(max_examples=examples(60))
@given(st.sets(MANY, max_size=60), st.lists(MANY_CHANGES, max_size=12), st.integers(1, 5))
def test_a_cursor_shows_every_key_as_it_was(
    at_first: set[bytes], between: list[list[tuple[bytes, bool]]], taken: int
) -> None:
    """H109: keys ahead of it are changed, deleted and made again, made and deleted, between its steps."""
    state = KeyValueState()
    for key in at_first:
        do(state, put((key, b"first")))
    expected = sorted(state.stored_values.items())
    view = state.snapshot_view()
    found = []
    for changes in between:
        found += view.next_keys(taken)
        for key, puts in changes:
            change = put((key, b"later")) if puts else deleted(key)
            do(state, change)
    while step := view.next_keys(taken):
        found += step

    assert found == expected
    assert view.key_count == len(expected)


def test_a_cursor_meets_more_changed_keys_than_it_takes_at_once() -> None:
    """H109: all that were there are gone, and ten times as many stand before the next one."""
    state = KeyValueState()
    for n in range(100):
        do(state, put((b"%03d" % n, b"first")))
    expected = sorted(state.stored_values.items())
    view = state.snapshot_view()
    for n in range(100):
        do(state, deleted(b"%03d" % n))
    for n in range(1000):
        do(state, put((b"%03d-new" % (n % 100), b"%d" % n)))
    found = []
    while step := view.next_keys(7):
        found += step

    assert found == expected


OF_FORMAT_1 = bytes.fromhex(
    "090000009801050302000102050e00000092a66c6561736573919201cd03e81f00000092a56974656d739296"
    "c40161c401320201030096c40162c40200ff010202012e00000092a87265717565737473959501a163010001"
    "9502a1630200019503a1640100029504a1630300039505a163040100"
)
"""A snapshot that was written before format 2: its chunks, each after its length."""


def test_a_snapshot_of_format_1_is_read() -> None:
    chunks, at = [], 0
    while at < len(OF_FORMAT_1):
        size = int.from_bytes(OF_FORMAT_1[at : at + 4], "little")
        chunks.append(OF_FORMAT_1[at + 4 : at + 4 + size])
        at += 4 + size
    state = restore(chunks)

    assert state.get(b"a") == KeyValue(b"a", b"2", 2, 1, 3, 0)
    assert state.get(b"b") == KeyValue(b"b", b"\x00\xff", 1, 2, 2, 1)
    assert (state.index, state.revision, state.next_lease) == (5, 3, 2)
    assert list(state.leases[1].keys) == [b"b"]
    assert do(state, put_of("c", 3, b"a", b"2")).transaction == TransactionReply(True, 3)
    assert next(iter(snapshot_chunks(state))) != chunks[0]  # and written as the newest


def put_of(client: str, request: int, key: bytes, value: bytes) -> Transact:
    return Transact(client, request, 0, Transaction((), (Put(key, value),)))


def test_a_snapshot_of_a_later_format_is_refused_in_words() -> None:
    with pytest.raises(UnsupportedFormat, match="newer version"):
        restore([pack([4, 0, 0, 1, 0, 0, 0, 0])])


def row_of(key: bytes, stored: bytes, *, stored_bytes: int | None = None) -> bytes:
    return (
        KEY_ROW.pack(len(key), len(stored) if stored_bytes is None else stored_bytes) + key + stored
    )


SOUND = VALUE_HEADER.pack(1, 0, 1, 1)


@pytest.mark.parametrize(
    "rows",
    [
        row_of(b"a", SOUND)[:-1],
        row_of(b"a", SOUND)[:4],
        row_of(b"a", SOUND, stored_bytes=1 << 31),
        row_of(b"a", SOUND[:-1]),
        row_of(b"", SOUND),
        row_of(bytes(4097), SOUND),
        row_of(b"a", VALUE_HEADER.pack(-1, 0, 1, 1)),
        row_of(b"a", VALUE_HEADER.pack(1, 7, 1, 1)),
        row_of(b"a", VALUE_HEADER.pack(1, 0, 1, -1)),
        row_of(b"b", SOUND) + row_of(b"a", SOUND),
        row_of(b"a", SOUND) * 2,
    ],
    ids=[
        "cut", "cut head", "long", "short", "no key", "long key", "version", "lease", "revision",
        "order", "twice",
    ],
)  # fmt: skip
def test_keys_that_nobody_wrote_are_corrupt(rows: bytes) -> None:
    with pytest.raises(CorruptData):
        restore([pack([2, 5, 5, 1, 0, 0, 1, 0]), KEYS_OF_A_CHUNK + rows])


def test_the_search_for_garbage_leaves_remembered_answers_alone() -> None:
    """It walked 65,536 of them, in one turn."""
    state = KeyValueState()
    for request in range(5):
        do(state, put_of("c", request, b"a", b""))
    gc.collect()

    assert len(state.request_dedup.rows()) == 5
    assert not any(map(gc.is_tracked, state.request_dedup.rows()))


def test_answers_that_are_swapped_are_corrupt() -> None:
    """Two chunks, each sound: another answer would be forgotten first."""
    state = KeyValueState()
    for request in (1, 2, 3):
        do(state, put_of("c", request, b"a", b""))
    head, keys, requests = snapshot_chunks(state)
    kind, rows = unpack(requests, "a chunk")
    sound = [head, keys, *(pack([kind, [row]]) for row in rows)]
    assert restore(sound).digest() == state.digest()

    with pytest.raises(CorruptData, match="out of order"):
        restore([*sound[:2], sound[3], sound[2], sound[4]])


def test_a_snapshot_that_is_dropped_costs_nothing_more() -> None:
    state = KeyValueState()
    do(state, put((b"a", b"")))
    chunks = snapshot_chunks(state)
    next(chunks)
    del chunks

    assert len(state._views) == 0


@pytest.mark.properties
def test_no_chunk_exceeds_what_is_read_back() -> None:
    """More leases, keys and requests than a list of a message may hold (65,536), and the largest key."""
    state = KeyValueState(leases_max=70_000)
    for number in range(REMEMBERED_REQUESTS + 1):
        state.next_lease += 1
        state.add_lease(number + 1, 1000)
        state.add_stored(b"%08d" % number, pack_item(KeyValue(b"", b"", 1, 1, 1, 0)), 0)
    state.add_stored(b"z", pack_item(KeyValue(b"", bytes(MIB - 1), 1, 1, 1, 0)), 0)
    state.revision = 1
    for number in range(REMEMBERED_REQUESTS):
        state.request_dedup.add(number, "c", number, 0, number)

    chunks = list(snapshot_chunks(state))

    assert max(map(len, chunks)) < MIB + 1000
    assert list(snapshot_chunks(restore(chunks, leases_max=70_000))) == chunks


@pytest.mark.parametrize("lost", range(4))
def test_a_snapshot_that_is_not_whole_is_corrupt(lost: int) -> None:
    state = KeyValueState()
    lease = do(state, GrantLease("c", 1, 0, 1000)).lease
    do(state, put((b"a", b""), lease=lease))
    chunks = list(snapshot_chunks(state))
    assert len(chunks) == 4
    del chunks[lost]

    with pytest.raises((CorruptData, UnsupportedFormat)):
        restore(chunks)


# --- bytes that nobody meant ----------------------------------------------------------------------

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.binary(max_size=5)
    | st.sampled_from(["transact", "grant", "revoke", "expire", "nothing", "version", "exists", ""])
)
MESSAGES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.binary(max_size=2), inner, max_size=2)
    ),
    max_leaves=12,
)
NEARLY = st.tuples(
    st.sampled_from(["transact", "grant", "revoke", "expire"]),
    st.tuples(st.sampled_from(["", "c"]), st.integers(0, 3), st.integers(0, 3)),
    MESSAGES,
)


@settings(max_examples=examples(300))
@given(st.one_of(st.binary(max_size=64), MESSAGES.map(pack), NEARLY.map(pack)))
def test_no_bytes_end_a_node(data: bytes) -> None:
    """M3: what raises here would end every node, again at each start."""
    state = KeyValueState()
    do(state, GrantLease("c", 1, 0, 1000))
    first = state.apply(2, data)
    again = state.apply(3, data)

    assert first[0].error is None or first[0].error.code == again[0].error.code  # type: ignore[union-attr]
    assert list(snapshot_chunks(restore(snapshot_chunks(state)))) == list(snapshot_chunks(state))
