"""What each namespace takes of the store is counted as it changes, and is what a count from nothing finds."""

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributedlog.cluster.auth.cluster_key_space import KEY_CLASSES
from distributedlog.ledger.model import ledger_keys as keys
from distributedlog.log.model import log_keys
from distributedlog.log.model.log_state import LogState
from distributedlog.log.model.segment_record import SegmentRecord
from distributedlog.log.model.stored_settings import bind_key, conf_key
from distributedlog.metadata.auth.namespace_quotas import NamespaceQuotas
from distributedlog.metadata.auth.namespace_usage import NamespaceUsage, NamespaceUsageCounter
from distributedlog.metadata.model.acl_records import NamespaceQuota
from distributedlog.metadata.model.commands import Transact
from distributedlog.metadata.model.transaction import Delete, Put, Transaction
from distributedlog.metadata.state.kv_snapshot import SnapshotBuilder, snapshot_chunks
from distributedlog.metadata.state.kv_state import VALUE_HEADER, KeyValueState
from distributedlog.runtime.interfaces.errors import CorruptData
from distributedlog.runtime.protocol.frames import pack, unpack
from tests.examples import examples

from ..state.test_kv_state import do
from .test_authorizer import record

SPACES = ("shop", "bank")
LOGS = (0x11, 0x22, 0x33)
LEDGERS = (1, 2, 3, 4)
BOOKIES = ("i1", "i2")


def counted(state: KeyValueState) -> dict[str, NamespaceUsage]:
    """From nothing, by another way: first all names, then all records, then each key by these."""
    spaces: dict[bytes, str] = {}
    for key in sorted(state.stored_values, key=lambda key: key.split(b"\0")[0], reverse=True):
        if key.startswith(b"name/"):
            log = state.stored_values[key][VALUE_HEADER.size :]
            spaces[log] = key.removeprefix(b"name/").split(b"\0")[0].decode()
    logs: dict[bytes, bytes] = {}
    for key, stored in state.stored_values.items():
        if key.startswith(keys.LEDGER_PREFIX):
            with suppress(CorruptData):
                logs[key] = KEY_CLASSES.log_of_ledger(key, stored[VALUE_HEADER.size :])
    found: dict[str, NamespaceUsage] = {}
    for key, stored in state.stored_values.items():
        place = KEY_CLASSES.of(key).scope_of(key)
        assert place is not None
        log = logs.get(place.ledger, b"") if place.ledger else place.log
        space = place.path[0] if place.path is not None else spaces.get(log)
        if space is not None:
            is_ledger = key.startswith(keys.LEDGER_PREFIX)
            found.setdefault(space, NamespaceUsage()).add(
                1, len(key) + len(stored) - VALUE_HEADER.size, is_ledger
            )
    return found


def some_change(chance: random.Random) -> Transaction:
    log, ledger = chance.choice(LOGS), chance.choice(LEDGERS)
    space, bookie = chance.choice(SPACES), chance.choice(BOOKIES)
    value = b"v" * chance.randrange(30)
    owned = record(ledger, chance.choice((*LOGS, 0))).encode()
    makes: list[Callable[[], Put]] = [
        lambda: Put(log_keys.name_key(space, f"n{log}"), log_keys.encode_log_id(log)),
        lambda: Put(log_keys.state_key(log), LogState(log, "n", 0).encode()),
        lambda: Put(log_keys.segment_key(log, ledger), value),
        lambda: Put(log_keys.position_key(log, "p"), value),
        lambda: Put(log_keys.staged_ledger_key(log, ledger), value),
        lambda: Put(keys.ledger_key(ledger), owned),
        lambda: Put(keys.ledger_key(ledger), value),  # that nobody can read
        lambda: Put(keys.bookie_ledger_key(bookie, ledger), b""),
        lambda: Put(keys.missing_ranges_key(ledger), value),
        lambda: Put(keys.delete_key(bookie, ledger), b""),
        lambda: Put(bind_key(space), value),
        lambda: Put(b"cookie/" + bookie.encode(), value),
    ]
    found: dict[bytes, Put | Delete] = {}
    for _ in range(chance.randrange(1, 4)):
        put = chance.choice(makes)()
        found[put.key] = Delete(put.key) if chance.random() < 0.4 else put
    return Transaction((), tuple(found.values()))


@settings(max_examples=examples(20), deadline=None)
@given(st.integers(0, 1 << 32))
def test_what_is_counted_is_what_there_is(seed: int) -> None:
    """Begun anywhere, walked by pieces between changes, with names that come later and go to elsewhere;
    growth that was foretold is what came; after a snapshot the same."""
    chance, state = random.Random(seed), KeyValueState()
    use = NamespaceUsageCounter(KEY_CLASSES)
    begins = chance.randrange(60)
    for number in range(120):
        if number == begins:
            use.start_counting(state)
        if number >= begins and chance.random() < 0.3:
            use.count_some(chance.randrange(1, 6))
        change = some_change(chance)
        do(state, Transact("c", number, state.index, change))
        if use.is_complete:
            assert use.usage_by_namespace == counted(state)
    while use.count_some(3):
        pass
    assert use.usage_by_namespace == counted(state)
    builder = SnapshotBuilder(KeyValueState())
    for chunk in snapshot_chunks(state):
        builder.add(chunk)
    other = NamespaceUsageCounter(KEY_CLASSES)
    other.start_counting(builder.finish())
    while other.count_some(7):
        pass
    assert other.usage_by_namespace == use.usage_by_namespace


def full_world(bounds: NamespaceQuota) -> tuple[KeyValueState, NamespaceQuotas]:
    """A log in each of two namespaces. ``bounds`` of shop; 0: what it has."""
    state = KeyValueState()
    quotas = NamespaceQuotas(KEY_CLASSES)
    quotas.usage.start_counting(state)
    quotas.usage.count_some()
    made = (
        Put(log_keys.name_key("shop", "a"), log_keys.encode_log_id(0x11)),
        Put(log_keys.state_key(0x11), LogState(0x11, "a", 0, last_segment=1).encode()),
        Put(log_keys.segment_key(0x11, 1), b"s" * 100),
        Put(log_keys.work_key(0x11, "w"), b"w" * 20_000),
        Put(keys.ledger_key(1), record(1, 0x11).encode()),
        Put(keys.bookie_ledger_key("i1", 1), b""),
        Put(keys.bookie_ledger_key("i2", 1), b""),
        Put(log_keys.name_key("bank", "b"), log_keys.encode_log_id(0x22)),
        Put(log_keys.state_key(0x22), LogState(0x22, "b", 0).encode()),
    )
    do(state, Transact("c", 1, 0, Transaction((), made)))
    use = quotas.usage.usage_by_namespace["shop"]
    full = NamespaceQuota(
        bounds.keys or use.keys, bounds.size_bytes or use.size_bytes, bounds.ledgers or use.ledgers
    )
    do(state, Transact("c", 2, 0, Transaction((), (Put(b"trust/quota/shop", full.encode()),))))
    return state, quotas


def over(
    state: KeyValueState, quotas: NamespaceQuotas, *operations: Put | Delete, who: str = "user/etl"
) -> str:
    growth = quotas.growth_by_namespace(who, Transaction((), operations))
    refused = quotas.quota_error(state, growth)
    return "" if refused is None else str(refused)


PLENTY = NamespaceQuota(1 << 40, 1 << 40, 1 << 40)
NEW_LEDGER = (
    Put(keys.ledger_key(2), record(2, 0x11).encode()),
    Put(keys.bookie_ledger_key("i1", 2), b""),
)


@pytest.mark.parametrize(
    ("bounds", "refused"),
    [
        (replace(PLENTY, keys=0), "has 7 keys"),
        (replace(PLENTY, size_bytes=0), "bytes"),
        (replace(PLENTY, ledgers=0), "has 1 ledgers"),
    ],
)
def test_a_full_namespace_makes_nothing_new_and_is_closed_truncated_and_deleted(
    bounds: NamespaceQuota, refused: str
) -> None:
    state, quotas = full_world(bounds)
    at, segment = log_keys.state_key(0x11), log_keys.segment_key(0x11, 1)
    assert refused in over(state, quotas, *NEW_LEDGER)
    named = Put(log_keys.name_key("shop", "c"), log_keys.encode_log_id(0x33))
    log = Put(log_keys.state_key(0x33), LogState(0x33, "c", 0).encode())
    if "ledgers" not in refused:
        assert refused in over(state, quotas, Put(log_keys.position_key(0x11, "p"), b"1"))
        assert refused in over(state, quotas, named, log), "its name comes with it"
    assert not over(state, quotas, *NEW_LEDGER, who="bookie/b1"), "repair"
    assert "namespace shop" in over(state, quotas, *NEW_LEDGER, who="proxy/p1"), "for its clients"
    other = Put(log_keys.position_key(0x22, "p"), b"1" * 5000)
    assert not over(state, quotas, other), "another namespace"

    claimed = LogState(0x11, "a", 0, epoch=7, owner="o" * 200, writer_id="w" * 16, last_segment=1)
    lock = Put(log_keys.lock_key(0x11), b"l" * 100, 0)
    assert not over(state, quotas, Put(at, claimed.encode()), lock), "taken over"
    longer = record(1, 0x11, ("i1", "i3"))
    closed = replace(longer.in_recovery(), custom={"why": b"w" * 300}).close_by_recovery(
        4, 400, longer.ensembles
    )
    close: tuple[Put | Delete, ...] = (
        Put(keys.ledger_key(1), closed.encode()),
        Put(keys.bookie_ledger_key("i3", 1), b""),
        Delete(keys.bookie_ledger_key("i2", 1)),
        Put(keys.missing_ranges_key(1), b"h" * 60),
        Put(segment, b"s" * 160),
        Put(at, claimed.encode()),
    )
    assert not over(state, quotas, *close), "its open segment is closed"
    truncated = (Put(at, claimed.encode()), Put(log_keys.purge_key(0x11), b""))
    assert not over(state, quotas, *truncated)
    deleted: tuple[Put | Delete, ...] = (
        Put(keys.ledger_key(1), replace(closed, owner=None).deleting().encode()),
        *(Delete(keys.bookie_ledger_key(one, 1)) for one in ("i1", "i2")),
        *(Put(keys.delete_key(one, 1), b"") for one in ("i1", "i2")),
        Delete(segment),
    )
    do(state, Transact("c", 3, 0, Transaction((), close)))
    assert not over(state, quotas, *deleted)
    gone = (Delete(at), Delete(log_keys.name_key("shop", "a")), Put(b"gone/0aa/shop\0a", b"t" * 60))
    assert not over(state, quotas, *gone)


def test_small_changes_make_a_full_namespace_larger_so_far_and_no_further() -> None:
    """Who grows what is there, a little at a time, is stopped; and what ends a log passes then, too."""
    state, quotas = full_world(replace(PLENTY, size_bytes=0))
    at = log_keys.position_key(0x11, "p")
    put = Transact("c", 3, 0, Transaction((), (Put(at, b""),)))
    do(state, put)
    most = quotas.quota_of(state, "shop").size_bytes
    size = number = 0
    while not (refused := over(state, quotas, Put(at, b"x" * (size + 10)))):
        size, number = size + 10, number + 1
        do(state, Transact("c", 10 + number, 0, Transaction((), (Put(at, b"x" * size),))))
        assert number < 1000
    assert f"allowed are {most}" in refused
    assert most < quotas.usage.usage_by_namespace["shop"].size_bytes <= most * 1.25
    claimed = LogState(0x11, "a", 0, epoch=7, owner="o" * 200, deleting=True, last_segment=1)
    state_at = log_keys.state_key(0x11)
    assert not over(state, quotas, Put(state_at, claimed.encode()))
    fat = replace(claimed, unknown_fields=("x" * 2000,))
    monstrous = _encoded_without_bound(fat)
    assert over(state, quotas, Put(state_at, monstrous)), "a state is small"
    assert not over(state, quotas, Delete(at))


def _encoded_without_bound(state: LogState) -> bytes:
    fields = unpack(replace(state, unknown_fields=()).encode(), "a state")
    return pack([*fields, *state.unknown_fields])


def test_what_is_under_way_counts() -> None:
    """Else a burst before the first of it is applied goes as far as it likes."""
    state, quotas = full_world(PLENTY)
    bounds = NamespaceQuota(10, 1 << 40, 1 << 40)
    do(state, Transact("c", 3, 0, Transaction((), (Put(b"trust/quota/", bounds.encode()),))))
    state.authorization_revision = state.revision
    do(state, Transact("c", 4, 0, Transaction((), (Delete(b"trust/quota/shop"),))))
    state.authorization_revision = state.revision
    quotas.begin_term(1)
    taken = 0
    for number in range(20):
        growth = quotas.growth_by_namespace(
            "user/etl", Transaction((), (Put(log_keys.position_key(0x11, f"p{number}"), b"1"),))
        )
        if quotas.quota_error(state, growth) is None:
            taken += 1
            quotas.on_accepted(state.index + taken, growth)
    assert taken == 10 - 7
    quotas.begin_term(2)  # they are in the log of this term's leader, or never will be
    assert not over(state, quotas, Put(log_keys.position_key(0x11, "p"), b"1"))


def test_what_goes_counts_when_it_is_gone() -> None:
    """A deletion under way may come to nothing: its condition need not hold."""
    state, quotas = full_world(replace(PLENTY, keys=0))
    quotas.begin_term(1)
    bigger = Put(log_keys.work_key(0x11, "w"), b"w" * 30_000)
    going = (Delete(log_keys.segment_key(0x11, 1)), bigger)
    quotas.on_accepted(
        state.index + 1, quotas.growth_by_namespace("user/etl", Transaction((), going))
    )
    assert "has 7 keys" in over(state, quotas, Put(log_keys.position_key(0x11, "p"), b"1"))


def test_a_log_that_moves_brings_all_that_it_has() -> None:
    state, quotas = full_world(PLENTY)
    bounds = NamespaceQuota(5, 1 << 40, 1 << 40)
    do(state, Transact("c", 3, 0, Transaction((), (Put(b"trust/quota/bank", bounds.encode()),))))
    move = (
        Delete(log_keys.name_key("shop", "a")),
        Put(log_keys.name_key("bank", "a"), log_keys.encode_log_id(0x11)),
    )
    assert "namespace bank has 2 keys" in over(state, quotas, *move)
    stays = (
        Delete(log_keys.name_key("shop", "a")),
        Put(log_keys.name_key("shop", "z"), log_keys.encode_log_id(0x11)),
    )
    assert not over(state, quotas, *stays)
    do(state, Transact("c", 4, 0, Transaction((), move)))
    assert (
        quotas.usage.usage_by_namespace["bank"].keys,
        "shop" in quotas.usage.usage_by_namespace,
    ) == (9, False)


@pytest.mark.parametrize(
    "key",
    [
        b"log/%016x/lock/x",
        b"purge/%016x/x",
        b"logconf/%016xx",
        b"bind/shop\0x%x",
        b"under/x/%016x",
    ],
)
def test_a_note_is_one_of_its_thing_or_counts(key: bytes) -> None:
    """What looks so but has more to it could be made without end, and empty ones without a byte's bound."""
    state, quotas = full_world(replace(PLENTY, keys=0))
    number = 1 if key.startswith(b"under") else 0x11
    assert "has 7 keys" in over(state, quotas, Put(key % number, b""))


def test_a_ledger_that_comes_by_its_log_brings_what_it_had_before() -> None:
    """Copies of it that were named before its record was there, or could be read: they count from then on."""
    state, quotas = full_world(PLENTY)
    early = tuple(Put(keys.bookie_ledger_key(one, 5), b"") for one in BOOKIES)
    do(state, Transact("c", 3, 0, Transaction((), early)))
    comes = Transaction((), (Put(keys.ledger_key(5), record(5, 0x22).encode()),))
    before = replace(quotas.usage.usage_by_namespace["bank"])
    growth = quotas.growth_by_namespace("user/etl", comes)["bank"]
    do(state, Transact("c", 4, 0, comes))
    after = quotas.usage.usage_by_namespace["bank"]
    assert (growth.keys, growth.size_bytes, growth.ledgers) == (
        after.keys - before.keys,
        after.size_bytes - before.size_bytes,
        after.ledgers - before.ledgers,
    )
    assert growth.keys == 3


def test_a_rename_passes_however_far_beyond_its_bytes_a_namespace_is() -> None:
    """It adds nothing, but for a longer name; a second name, or a log of that name, would."""
    state, quotas = full_world(replace(PLENTY, size_bytes=10))
    log_id, renamed = log_keys.encode_log_id(0x11), LogState(0x11, "longer/" * 9, 0, last_segment=1)
    comes = Put(log_keys.name_key("shop", renamed.name), log_id)
    called = Put(log_keys.state_key(0x11), renamed.encode())
    goes = Delete(log_keys.name_key("shop", "a"))
    assert not over(state, quotas, goes, comes, called)
    assert "bytes" in over(state, quotas, comes, called), "a second name"
    born = Put(log_keys.state_key(0x33), LogState(0x33, "c", 0).encode())
    named = Put(log_keys.name_key("shop", "c"), log_keys.encode_log_id(0x33))
    assert "bytes" in over(state, quotas, named, born)
    moves = Put(log_keys.name_key("bank", "a"), log_id)
    assert not over(state, quotas, goes, moves), "out of it"
    back = Put(log_keys.name_key("shop", "b"), log_keys.encode_log_id(0x22))
    assert "bytes" in over(state, quotas, Delete(log_keys.name_key("bank", "b")), back), "into it"


def test_a_ledger_that_goes_to_a_log_elsewhere_brings_what_it_has() -> None:
    """Who may write in both would else make in one, and keep in the other, without end."""
    state, quotas = full_world(PLENTY)
    for bounds, why in (
        (NamespaceQuota(3, 1 << 40, 1 << 40), "has 2 keys"),
        (NamespaceQuota(1 << 40, 1 << 40, 0), "has 0 ledgers"),
        (NamespaceQuota(1 << 40, 200, 1 << 40), "bytes"),
    ):
        quota = Transaction((), (Put(b"trust/quota/bank", bounds.encode()),))
        do(state, Transact("c", state.index + 1, 0, quota))
        quotas.quota_of(state, "bank")
        quotas._quota_by_namespace.clear()
        assert why in over(state, quotas, Put(keys.ledger_key(1), record(1, 0x22).encode()))
        assert not over(state, quotas, Put(keys.ledger_key(1), record(1, 0x11).encode()))


def test_a_name_that_names_no_log_makes_no_ledger_its_own() -> None:
    state, quotas = full_world(PLENTY)
    do(state, Transact("c", 3, 0, Transaction((), (Put(log_keys.name_key("bank", "x"), b""),))))
    growth = quotas.growth_by_namespace(
        "user/etl", Transaction((), (Put(keys.ledger_key(7), record(7, 0).encode()),))
    )
    assert not growth


def test_what_is_far_beyond_is_closed_claimed_and_deleted_all_the_same() -> None:
    """An admin has made the bound less than what is there: who takes something away has to be able to."""
    state, quotas = full_world(replace(PLENTY, size_bytes=10))
    at, segment = log_keys.state_key(0x11), log_keys.segment_key(0x11, 1)
    claimed = LogState(0x11, "a", 0, epoch=7, owner="o" * 200, writer_id="w" * 16, last_segment=1)
    lock = Put(log_keys.lock_key(0x11), b"l" * 300, 0)
    assert not over(state, quotas, Put(at, claimed.encode()), lock), "taken over, or to be deleted"
    assert not over(state, quotas, Put(conf_key(0x11), b"c" * 300)), "set"
    open_one = record(1, 0x11)
    left = Put(keys.ledger_key(1), open_one.in_recovery().encode())
    assert not over(state, quotas, left)
    closed = open_one.in_recovery().close_by_recovery(4, 400, open_one.ensembles)
    close = (
        Put(keys.ledger_key(1), closed.encode()),
        Put(keys.missing_ranges_key(1), b"h" * 60),
        Put(segment, b"s" * 160),
        Put(at, claimed.encode()),
    )
    assert not over(state, quotas, *close)
    assert over(state, quotas, *close[:2], Put(segment, b"s" * 1500)), "a little"
    do(state, Transact("c", 3, 0, Transaction((), close)))
    assert len(open_one.encode()) < len(closed.encode())
    assert over(state, quotas, Put(keys.ledger_key(1), open_one.encode())), "and once"
    assert over(state, quotas, *close[1:2], Put(segment, b"s" * 170))
    begun = SegmentRecord(1, 1, 1, 0)
    do(state, Transact("c", 4, 0, Transaction((), (Put(segment, begun.encode()),))))
    ended = replace(begun, closed=True, closed_ms=1 << 40, records=1 << 20, size_bytes=1 << 30)
    assert not over(state, quotas, Put(segment, ended.encode()), Put(at, claimed.encode()))
    assert over(state, quotas, Put(segment, replace(begun, created_ms=1 << 40).encode()))
    gone: tuple[Put | Delete, ...] = (
        Put(keys.ledger_key(1), replace(closed, owner=None).deleting().encode()),
        *(Delete(keys.bookie_ledger_key(one, 1)) for one in ("i1", "i2")),
        *(Put(keys.delete_key(one, 1), b"") for one in ("i1", "i2")),
        Delete(segment),
        Delete(at),
        Delete(log_keys.name_key("shop", "a")),
        Put(b"gone/0aa/shop\0a", b"t" * 60),
    )
    assert not over(state, quotas, *gone)
