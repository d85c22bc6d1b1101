"""Names, keys, and what is kept of logs and segments."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributedlog.log.declarations.options import LogOptions
from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.interfaces.log_names import (
    check_log_name,
    check_namespace_path,
    check_new_log_name,
)
from distributedlog.log.model.log_keys import log_name_in_key, name_key, segment_key
from distributedlog.log.model.log_state import STATE_BYTES_MAX, ClosedSegmentTotals, LogState
from distributedlog.log.model.segment_record import (
    EMPTY_END,
    SegmentEnd,
    SegmentRecord,
    roll_reason,
)
from distributedlog.runtime.declarations.options import with_overrides
from distributedlog.runtime.interfaces.errors import (
    CorruptData,
    EndOfStream,
    InvalidLogName,
    InvalidRequest,
    InvalidUri,
    UnsupportedFormat,
)
from distributedlog.runtime.protocol.frames import pack, unpack
from tests.examples import examples

BAD_NAMES = ["", " bad<name", "a b", ".hidden", "<default>", "a//b", "a/../b", "./a", "a/.", "/a",
             "a/", "tab\t", "nul\x00", "a>b", "x" * 256, "\ud800"]  # fmt: skip


@pytest.mark.parametrize("name", BAD_NAMES)
def test_bad_names_are_refused(name: str) -> None:
    """DistributedLog's rules for names."""
    with pytest.raises(InvalidLogName):
        check_log_name(name)


@pytest.mark.parametrize("name", ["orders", "a/b/c", "a.b", "a..b", "Ünïcode-日本", "x" * 255])
def test_good_names_pass_and_come_back_from_their_key(name: str) -> None:
    assert check_log_name(name) == name
    assert log_name_in_key("ns/x", name_key("ns/x", name)) == name


@pytest.mark.parametrize(
    ("name", "normal"),
    [
        ("cafe\u0301", "caf\u00e9"),
        ("\uff4f\uff52\uff44\uff45\uff52\uff53", "orders"),
        ("\ufb01le", "file"),
    ],
)
def test_a_new_log_has_no_name_that_only_looks_like_another(name: str, normal: str) -> None:
    """Logs that have such names can still be opened."""
    assert check_log_name(name) == name
    with pytest.raises(InvalidLogName, match="NFKC") as refused:
        check_new_log_name(name)
    assert repr(normal) in str(refused.value)
    assert check_new_log_name(normal) == normal


def test_a_namespace_does_not_see_into_another() -> None:
    assert not name_key("ns/b", "c").startswith(name_key("ns", ""))
    assert check_namespace_path("/a/b/") == "a/b"
    with pytest.raises(InvalidUri):
        check_namespace_path("//")


@settings(max_examples=examples(100))
@given(st.integers(1, 2**40), st.integers(1, 2**40))
def test_segment_keys_sort_as_segments_do(one: int, other: int) -> None:
    assert (one < other) == (segment_key(10, one) < segment_key(10, other))


def a_state() -> LogState:
    return LogState(0xFF, "orders", 1_700_000_000_000)


def test_the_life_of_a_state() -> None:
    """H12: epoch grows with each writer; segments are closed in order."""
    state = a_state().with_writer("host a", "w1").with_segment()
    assert (state.epoch, list(state.in_progress), state.next_sequence_id) == (1, [1], 0)

    rolling = state.with_segment()
    assert list(rolling.in_progress) == [1, 2]

    rolled = rolling.with_closed(1, ClosedSegmentTotals(10, 400, 55, 2000, DLSN(1, 8, 1)))
    assert (list(rolled.in_progress), rolled.next_sequence_id, rolled.last_txid) == ([2], 10, 55)
    assert (rolled.bytes_total, rolled.time_ms, rolled.last_dlsn) == (400, 2000, DLSN(1, 8, 1))
    empty = rolled.with_closed(2, ClosedSegmentTotals(0, 30, last_time_ms=1000))
    assert (empty.last_txid, empty.bytes_total) == (55, 430)
    assert (empty.time_ms, empty.last_dlsn) == (2000, DLSN(1, 8, 1))
    assert rolled.without_owner().owner == ""
    assert rolled.with_writer("host b", "w2").epoch == 2
    with pytest.raises(AssertionError):
        rolling.with_closed(2, ClosedSegmentTotals())


def test_a_sealed_log_takes_no_writer() -> None:
    with pytest.raises(EndOfStream):
        LogState(1, "l", 0, sealed=True).with_writer("me", "w")


@settings(max_examples=examples(100))
@given(
    st.text(min_size=1, max_size=255),
    st.text(max_size=400),
    st.integers(0, 2**62),
    st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9)) | st.none(),
)
def test_a_state_is_read_back_and_small(
    owner: str, writer: str, number: int, quorums: tuple[int, int, int] | None
) -> None:
    """H40: at most 1 KiB."""
    state = LogState(
        2**63 - 1, "n" * 255, number, number, number, last_segment=number, first_open_segment=number + 1,
        last_txid=number, next_sequence_id=number, truncated_to=DLSN(1, number, 3), quorums=quorums,
    ).with_writer(owner.encode(errors="replace").decode(), "e" * 16)  # fmt: skip

    value = state.encode()

    assert len(value) <= STATE_BYTES_MAX
    assert LogState.decode(value) == state


def test_damaged_and_newer_states_are_told_apart() -> None:
    value = a_state().encode()
    for length in range(len(value)):
        with pytest.raises(CorruptData):
            LogState.decode(value[:length])
    fields = unpack(value, "a state")
    with pytest.raises(UnsupportedFormat):
        LogState.decode(pack([3, *fields[1:]]))
    for written_in in (0, 1, 2):
        with pytest.raises(CorruptData):
            LogState.decode(pack([written_in, *["x"] * 25]))


@pytest.mark.parametrize("last", [3, 1 << 40, (1 << 63) - 1])
def test_no_state_has_more_than_two_segments_in_progress(last: int) -> None:
    """Who takes a log over, a write proxy for all its clients, makes a list of them: a writer that put such a
    state into its own log would take all memory there is."""
    fields = unpack(LogState(7, "x", 0, first_open_segment=1, last_segment=2).encode(), "a state")
    assert fields[10] == 2
    fields[10] = last
    with pytest.raises(CorruptData, match="at most two"):
        LogState.decode(pack(fields))


def test_a_segment_is_read_back() -> None:
    record = SegmentRecord(7, 99, 3, 1_700_000_000_000)
    end = SegmentEnd(4, 1000, 12, 5, 50, 3, 6)

    before = replace(a_state(), next_sequence_id=40, bytes_total=7000, last_txid=4)
    closed = record.with_end(end, before, closed_ms=1_700_000_000_500)

    assert (closed.start_sequence_id, closed.bytes_before, closed.last_txid) == (40, 7000, 50)
    assert SegmentRecord.decode(record.encode()) == record
    assert SegmentRecord.decode(closed.encode()) == closed
    assert closed.last_dlsn == DLSN(7, 3, 6)
    empty = record.with_end(EMPTY_END, before, closed_ms=1)
    assert (empty.last_dlsn, empty.last_txid, empty.totals.last_txid) == (None, 4, -1)
    with pytest.raises(CorruptData):
        SegmentRecord.decode(b"\x91\x01")


def test_when_a_segment_ends() -> None:
    """Rolls at 1 GiB or 2 h; H22: or a better ensemble."""

    def why(
        written: int = 0, age: float = 0.0, wants: bool = False, user: int | None = None
    ) -> str:
        return roll_reason(
            bytes_written=written,
            bytes_max=100,
            user_bytes=written if user is None else user,
            age_s=age,
            age_max_s=7200,
            ledger_needs_roll=wants,
        )

    assert why() == why(99, 7199) == why(0, 9999) == why(99, 9999, user=0) == ""
    assert "100 bytes" in why(100)
    assert "7200 s" in why(1, 7200)
    assert "ensemble" in why(wants=True)


def test_options_overlay_one_another() -> None:
    """The configuration of open_log overlays the namespace's."""
    options = with_overrides(LogOptions(), {"segment_bytes_max": 1000, "segment_age_max_s": 5})

    assert (options.segment_bytes_max, options.segment_age_max_s) == (1000, 5)
    assert with_overrides(options, None) is options
    for wrong in (
        {"nope": 1},
        {"entry_bytes_max": "1"},
        {"entry_bytes_max": 0},
        {"create_if_missing": 1},
    ):
        with pytest.raises(InvalidRequest):
            with_overrides(LogOptions(), wrong)
