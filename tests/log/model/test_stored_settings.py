"""A log's stored settings over its namespace's over a program's own (H149, H169)."""

from contextlib import suppress
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from distributedlog.ledger.declarations.options import LedgerOptions
from distributedlog.log.declarations.options import LogOptions
from distributedlog.log.format.record import LogRecord
from distributedlog.log.model.log_keys import state_key
from distributedlog.log.model.log_state import LogState
from distributedlog.log.model.stored_settings import (
    METADATA_BYTES_MAX,
    QUORUMS,
    STORED_OPTIONS,
    RetentionOptions,
    StoredSettings,
    bind_key,
    conf_key,
    effective_options,
    retention_of,
)
from distributedlog.log.namespace import Namespace
from distributedlog.log.services.settings_watch import SWEEP_KEYS_MIN
from distributedlog.metadata.model.transaction import Put, Transaction, TransactionReply
from distributedlog.runtime.declarations.options import (
    COUNT_LIMIT,
    DURATION_S_MAX,
    option_fields,
    with_overrides,
)
from distributedlog.runtime.interfaces.errors import (
    CorruptData,
    InvalidRequest,
    LogNotFound,
    OutcomeUnknown,
    UnsupportedFormat,
)
from distributedlog.runtime.protocol.frames import pack
from distributedlog.runtime.protocol.schema import NUMBER_MAX
from tests.log.conftest import World

NOTHING = StoredSettings()
KEPT: dict[str, Any] = {
    "retention_s": 0.0,
    "retention_bytes": 0,
    "retention_segments_min": COUNT_LIMIT,
    "hold_max_s": float(DURATION_S_MAX),
}
NOT_NUMBERS = (
    *("codec", "rolling", "at_limit", "max_txid_check", "retention", "merging"),
    "record_headers",
)


def stored(**settings: Any) -> StoredSettings:
    return NOTHING.with_changes(settings, {})


def test_a_logs_own_stands_over_its_namespaces_over_the_programs() -> None:
    program = with_overrides(LogOptions(), {"segment_bytes_max": 1, "entry_bytes_max": 1})
    bind, own = stored(segment_bytes_max=2, segment_age_max_s=2.0), stored(segment_bytes_max=3)

    found = effective_options(program, (), bind, own)

    assert (found.entry_bytes_max, found.segment_age_max_s, found.segment_bytes_max) == (1, 2.0, 3)
    assert effective_options(program, ["segment_bytes_max"], bind, own).segment_bytes_max == 1
    rule = retention_of(stored(retention_s=5.0, retention_bytes=7), stored(retention_s=9.0))
    assert (rule.retention_s, rule.retention_bytes, rule.retention) == (9.0, 7, True)


def test_what_is_the_logs_own_is_not_contradicted_by_who_opens_it() -> None:
    own = stored(max_txid_check=False)
    with pytest.raises(InvalidRequest, match=r"change it with Log\.set"):
        effective_options(LogOptions(), ["max_txid_check"], NOTHING, own)
    given = with_overrides(LogOptions(), {"max_txid_check": False})
    assert not effective_options(given, ["max_txid_check"], NOTHING, own).max_txid_check
    assert not effective_options(LogOptions(), (), NOTHING, own).max_txid_check


@pytest.mark.parametrize(
    "settings",
    [
        {"nope": 1},
        {"segment_bytes_max": 0},
        {"retention_s": -1.0},
        {"retention_s": "1h"},
        {"rolling": 1},
        {"ensemble_size": 3},
        {"ensemble_size": 3, "write_quorum": 2, "ack_quorum": 3},
        {"ensemble_size": 3, "write_quorum": 2, "ack_quorum": "2"},
    ],
)
def test_what_is_not_legal_is_refused_by_name(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        NOTHING.with_changes(settings, {})


def test_an_option_of_a_process_is_known_and_not_stored() -> None:
    """It is no unknown name: whoever sets it is told where it goes."""
    for name in ("lock_lease_s", "read_bytes"):
        with pytest.raises(InvalidRequest, match=f"{name} is local to each process"):
            NOTHING.with_changes({name: 1}, {})
    for name in ("process_bytes_max", "owner", "add_timeout_s"):  # of its client, of its ledgers
        with pytest.raises(
            InvalidRequest, match=r"local to each process.* open_namespace\(config=\)"
        ):
            NOTHING.with_changes({name: 1}, {})
    with pytest.raises(InvalidRequest, match="unknown option 'nope'"):
        NOTHING.with_changes({"nope": 1}, {})


def test_notes_have_a_bound() -> None:
    NOTHING.with_changes({}, {"a": bytes(METADATA_BYTES_MAX - 20)})
    for notes in ({"a": bytes(METADATA_BYTES_MAX)}, {"a": "text"}, {1: b""}, {"a" * 300: b""}):
        with pytest.raises(InvalidRequest):
            NOTHING.with_changes({}, notes)  # type: ignore[arg-type]


def test_what_a_newer_program_set_is_kept_and_passed_over() -> None:
    """H149: a name that is not known here is not taken away by who changes another one."""
    found = StoredSettings.decode(pack([1, {"new_option": 4, "retention_s": 1.0}, {}, "later"]))

    changed = found.with_changes({"retention_s": None}, {})

    assert changed.settings == {"new_option": 4}
    assert effective_options(LogOptions(), (), NOTHING, changed) == LogOptions()
    with pytest.raises(UnsupportedFormat):
        StoredSettings.decode(pack([2, {}, {}]))


GOLDEN = bytes.fromhex(
    "9301 82ab 726574656e74696f6e5f73 cb404e000000000000 a7 726f6c6c696e67 c2 81 a1 61 c4 01 62"
)


def test_the_bytes_are_these() -> None:
    """docs/reference/formats.md."""
    value = NOTHING.with_changes({"retention_s": 60.0, "rolling": False}, {"a": b"b"})
    assert value.encode() == GOLDEN
    assert StoredSettings.decode(GOLDEN) == value


@given(st.binary(max_size=60))
def test_what_is_damaged_is_corrupt_data_and_nothing_else(value: bytes) -> None:
    with suppress(CorruptData, UnsupportedFormat):
        StoredSettings.decode(value)


def test_a_value_that_is_not_legal_any_more_is_damage() -> None:
    for settings in (
        {"retention_s": "1h"},
        {"retention_s": True},
        {"rolling": "no"},
        {"ensemble_size": 1},
        {"x": [1]},
    ):
        with pytest.raises(CorruptData):
            StoredSettings.decode(pack([1, settings, {}]))


INF, NAN = float("inf"), float("nan")


def from_elsewhere(settings: dict[str, Any]) -> StoredSettings:
    """As a program without limits stores them."""
    return StoredSettings.decode(pack([1, settings, {}]))


def test_infinite_retention_is_stored_as_never() -> None:
    """In values that every version reads: 0 is never, and no hold is longer than ten years."""
    found = stored(retention_s=INF, hold_max_s=INF)

    assert found.settings == {"retention_s": 0, "hold_max_s": DURATION_S_MAX}
    rule = retention_of(NOTHING, found)
    assert not rule.is_limited
    assert rule.hold_max_ms == NUMBER_MAX


def test_infinite_retention_that_is_stored_means_never() -> None:
    found = from_elsewhere({"retention_s": INF, "hold_max_s": INF})

    rule = retention_of(stored(retention_s=60.0), found)

    assert not found.out_of_range
    assert (rule.retention_s, rule.retention_ms) == (0, 0)
    assert rule.hold_max_ms == NUMBER_MAX


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("retention_s", value) for value in (NAN, -INF, 1e306, -1.0)),
        *(("hold_max_s", value) for value in (NAN, -INF, 0, -1)),
        *(("segment_age_max_s", value) for value in (INF, NAN, 1e306, -1.0)),
        *(("keep_alive_s", value) for value in (INF, NAN, 1e306, -1.0)),
        *(("segment_bytes_max", value) for value in (0, -1, 2**63 - 1, 2**64 - 1, 1.5, INF)),
        *(("records_per_s_max", value) for value in (-1, 2**64 - 1, INF, NAN)),
        *(("retention_bytes", value) for value in (-1, 2**64 - 1, 0.5)),
        *(("retention_segments_min", value) for value in (-1, 2**64 - 1, 0.5)),
    ],
)
def test_a_stored_number_out_of_range_keeps_records_or_is_not_set(name: str, value: float) -> None:
    found = from_elsewhere({name: value, "rolling": False, "new_option": INF})

    kept = {} if name not in KEPT else {name: KEPT[name]}
    assert found.settings == {"rolling": False, "new_option": INF, **kept}
    assert [why.split()[1] for why in found.out_of_range] == [name]
    assert effective_options(LogOptions(), (), found, found) == LogOptions(rolling=False)
    assert retention_of(stored(retention_s=60.0), found) == RetentionOptions(
        **{"retention_s": 60.0, **kept}
    )
    assert found.with_changes({"rolling": None}, {}).settings == {"new_option": INF, **kept}


def test_stored_quorums_that_no_ledger_can_have_count_as_not_set() -> None:
    found = from_elsewhere({"ensemble_size": 300, "write_quorum": 3, "ack_quorum": 2})

    assert found.quorums is None
    assert len(found.out_of_range) == 1


@pytest.mark.parametrize("name", [one for one in STORED_OPTIONS if one not in NOT_NUMBERS])
@pytest.mark.parametrize("value", [INF, -INF, NAN, 1e306, 10**400, 2**64, -1, True, "5"])
def test_no_number_out_of_its_limits_can_be_stored(name: str, value: object) -> None:
    given: dict[str, Any] = {"ensemble_size": 3, "write_quorum": 3, "ack_quorum": 2}
    given = given if name in given else {}
    if name in ("retention_s", "hold_max_s") and value == INF:
        return

    with pytest.raises(InvalidRequest, match=f"option {name}: |option {name} is "):
        NOTHING.with_changes({**given, name: value}, {})


@pytest.mark.parametrize("name", [one for one in STORED_OPTIONS if one not in NOT_NUMBERS])
def test_what_is_stored_at_a_limit_is_read_back(name: str) -> None:
    described_ = {
        one.name: one
        for cls in (LogOptions, RetentionOptions, LedgerOptions)
        for one in option_fields(cls)
    }
    one = described_[name]
    least = one.metadata["at_least"] or (1 if isinstance(one.default, int) else 0)
    for value in (least, one.metadata["at_most"]):
        given = dict.fromkeys(QUORUMS, value) if name in QUORUMS else {name: value}

        found = NOTHING.with_changes(given, {})

        assert StoredSettings.decode(found.encode()) == found
        assert found.settings == given


async def test_stored_numbers_out_of_their_limits_lock_no_writer_out(
    world: World, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """And the next change of the log's settings removes them."""
    async with world.process() as ns:
        await ns.create_log("l")
        key = conf_key(await ns.resolve_name("l"))
        value = pack([1, {"segment_age_max_s": INF, "keep_alive_s": NAN, "retention_s": INF}, {}])
        await world.metadata.transact(Transaction((), (Put(key, value),)))
        log = ns.open_log("l")

        async with log.open_writer() as writer:
            await writer.write(LogRecord(1, b""))
            await trio.sleep(3600)
            await writer.write(LogRecord(2, b""))

        assert [one.message for one in caplog.records if "segment_age_max_s is inf" in one.message]
        assert (await log.set({"rolling": True})).settings == {"retention_s": 0, "rolling": True}


async def test_a_log_is_made_with_settings_and_notes_in_one_transaction(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process() as ns:
        quorums = {"ensemble_size": 5, "write_quorum": 3, "ack_quorum": 2}
        before = world.metadata.state.revision
        await ns.create_log("l", config={"retention_s": 9.0, **quorums}, metadata={"team": b"x"})
        assert world.metadata.state.revision == before + 1

        log = ns.open_log("l")
        found = await log.settings()
        assert (found.settings["retention_s"], found.metadata) == (9.0, {"team": b"x"})
        assert found.version == 1
        state = await world.metadata.get(state_key(await ns.resolve_name("l")))
        assert state is not None
        assert LogState.decode(state.value).quorums == (5, 3, 2)
        found = await log.set({"retention_s": None}, metadata={"team": None, "a": b"b"})
        assert (found.settings, found.metadata, found.version) == (quorums, {"a": b"b"}, 2)
        await log.set(dict.fromkeys(quorums))
        state = await world.metadata.get(state_key(await ns.resolve_name("l")))
        assert state is not None
        assert LogState.decode(state.value).quorums is None
        with pytest.raises(InvalidRequest, match="durability"):
            await ns.create_log("m", durability="all", config=quorums)
        with pytest.raises(InvalidRequest):
            await ns.create_log("m", config={"nope": 1})
        assert not await ns.log_exists("m")
        with pytest.raises(LogNotFound):
            await ns.open_log("m").settings()


async def test_a_writer_goes_by_what_is_stored(world: World, autojump_clock: MockClock) -> None:
    """And by what its caller said, where that is the caller's to say."""
    async with world.process() as ns:
        await ns.set({"segment_bytes_max": 100})
        await ns.create_log("own", config={"segment_bytes_max": 1000})

        async def segments(name: str, **config: Any) -> int:
            log = ns.open_log(name, config=config)
            async with log.open_writer() as writer:
                before = writer.segment
                for _ in range(20):
                    await writer.write(LogRecord(writer.last_txid + 1, bytes(90)))
                    await trio.sleep(1)
                return writer.segment - before

        assert await segments("all") >= 8
        assert 1 <= await segments("own") <= 5
        assert await segments("own", segment_bytes_max=10_000) == 0
        await ns.set({"segment_bytes_max": None})
        assert await segments("all") == 0
        with pytest.raises(InvalidRequest, match="set all three"):
            await ns.set({"ensemble_size": 3})
        assert (await ns.settings()).settings == {}


async def test_logs_are_created_with_the_quorums_of_their_namespace(
    world: World, autojump_clock: MockClock
) -> None:
    async def quorums(ns: Namespace, name: str) -> tuple[int, int, int] | None:
        return (await ns.open_log(name).describe()).state.quorums

    async with world.process() as ns:
        await ns.create_log("before")
        await ns.set({"ensemble_size": 5, "write_quorum": 3, "ack_quorum": 2})
        await ns.create_log("after")
        await ns.create_log("all", durability="all")
        own = {"ensemble_size": 2, "write_quorum": 2, "ack_quorum": 1}
        await ns.create_log("own", config=own)
        await (await ns.open_log("opened").open_writer()).aclose()

        assert await quorums(ns, "before") is None
        assert await quorums(ns, "after") == await quorums(ns, "opened") == (5, 3, 2)
        assert await quorums(ns, "all") == (5, 3, 3)
        assert await quorums(ns, "own") == (2, 2, 1)
        await ns.set(dict.fromkeys(QUORUMS))
        await ns.create_log("unset")
        assert await quorums(ns, "unset") is None


async def test_a_setting_that_is_changed_reaches_writers_that_are_open(
    world: World, autojump_clock: MockClock
) -> None:
    """H169: within a minute; what cannot be read leaves the last good one; a watch that fell behind reads."""
    async with world.process("alpha") as ns, world.process("beta") as other:
        await ns.create_log("l")
        writer = await ns.open_log("l").open_writer()

        async def rolls() -> int:
            await trio.sleep(60)
            before = writer.segment
            for _ in range(10):
                await writer.write(LogRecord(writer.last_txid + 1, bytes(90)))
                await trio.sleep(1)
            return writer.segment - before

        assert await rolls() == 0
        await other.set({"segment_bytes_max": 100})
        assert await rolls() >= 4
        await other.open_log("l").set({"rolling": False})
        assert await rolls() <= 1
        key = conf_key(await ns.resolve_name("l"))
        await world.metadata.transact(Transaction((), (Put(key, b"\xc1"),)))
        assert await rolls() == 0
        await world.metadata.transact(
            Transaction((), (Put(key, stored(rolling=True).encode()), Put(bind_key("ns"), b"\xc1")))
        )
        assert await rolls() >= 4
        await writer.aclose()


async def test_settings_that_cannot_be_read_lock_no_writer_out(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.process() as ns:
        await ns.create_log("l")
        puts = (
            Put(conf_key(await ns.resolve_name("l")), b"\xc1"),
            Put(bind_key("ns"), pack([9, {}, {}])),
        )
        await world.metadata.transact(Transaction((), puts))
        async with ns.open_log("l").open_writer() as writer:
            await writer.write(LogRecord(1, b""))
        with pytest.raises(CorruptData):
            await ns.open_log("l").settings()


@pytest.mark.parametrize("done", [True, False])
async def test_a_change_of_unknown_outcome_is_made_known(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    """G7: and two that change at once both count."""
    async with world.process() as ns:
        await ns.create_log("l")
        original, left = world.metadata.transact, [1]

        async def transact(transaction: Transaction) -> TransactionReply:
            if left:
                left.clear()
                if done:
                    await original(transaction)
                raise OutcomeUnknown("no answer")
            return await original(transaction)

        monkeypatch.setattr(world.metadata, "transact", transact)
        log = ns.open_log("l")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(log.set, {"retention_s": 5.0})
            nursery.start_soon(log.set, {"retention_bytes": 6})
        assert (await log.settings()).settings == {"retention_s": 5.0, "retention_bytes": 6}


def test_every_option_that_may_be_stored_is_known_once() -> None:
    assert len(set(STORED_OPTIONS)) == len(STORED_OPTIONS)


async def test_what_is_followed_is_forgotten_with_its_log(
    world: World, autojump_clock: MockClock
) -> None:
    """A process that opens a log after the other keeps nothing of those that it has closed."""
    async with world.process() as ns:
        watch = ns.context.settings
        kept = [await watch.follow_log(n, LogOptions(), ()) for n in range(5)]
        for log_id in range(5, 40 * SWEEP_KEYS_MIN):
            await watch.follow_log(log_id, LogOptions(), ())
            assert len(watch._open_logs) <= SWEEP_KEYS_MIN
        assert all(conf_key(one.log_id) in watch._open_logs for one in kept)
