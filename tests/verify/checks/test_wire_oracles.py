"""Each white-box promise: kept words pass, a broken one is found. Frames are made by hand."""

import pytest

from distributedlog.bookie.format import bookie_messages as words
from distributedlog.bookie.format.entry import encode
from distributedlog.metadata.raft.raft_messages import Heartbeat, Vote, VoteReply
from distributedlog.metadata.raft.raft_messages import encode as encode_raft
from distributedlog.runtime.interfaces.errors import NoSuchLedger
from distributedlog.runtime.protocol.frames import ENVELOPE_BYTES, Op, envelope
from distributedlog.testing.verify.checks.wire_oracles import (
    BookieOracle,
    FrameCutter,
    MetadataOracle,
)

KEY = bytes(16)
LEDGER = 7


def record(entry: int, lac: int = -1, payload: bytes = b"payload") -> bytes:
    return bytes(encode(LEDGER, entry, 100, lac, (payload,), len(payload)))


class Bookie:
    """One bookie and one client's connection to it, frame by frame."""

    def __init__(self, oracle: BookieOracle, name: str = "b1") -> None:
        self.oracle, self.name = oracle, name
        self.link = oracle.new_link(name)
        self._incoming, self._outgoing = FrameCutter(), FrameCutter()

    def gets(self, op: int, body: bytes, ident: int = 1) -> None:
        frame = envelope(op, len(body), ident=ident) + body
        for at in range(0, len(frame), 13):  # in pieces
            self._incoming.feed(
                frame[at : at + 13],
                lambda *a: self.oracle.on_arrived(self.link, *a),
            )

    def says(
        self,
        op: int,
        body: bytes,
        ident: int = 1,
        flags: int = words.FLAG_PROVES_ABSENCE,
        status: int = 0,
    ) -> None:
        frame = envelope(op, len(body), ident=ident, flags=flags, status=status) + body
        self._outgoing.feed(frame, lambda *a: self.oracle.on_answer(self.link, *a))

    def opens(self, recovery: bool = False, stream: int = 1) -> None:
        self.gets(
            Op.STREAM_OPEN, words.StreamOpenRequest(LEDGER, KEY, recovery, 0).encode(), ident=stream
        )

    def stores(self, *records: bytes, stream: int = 1) -> None:
        """Gets, syncs and acknowledges."""
        self.gets(Op.ADD, b"".join(records), ident=stream)
        self.oracle.on_durable(self.name, b"block header" + b"".join(records))
        self.acks(len(self.link.streams[stream].records), stream)

    def acks(self, count: int, stream: int = 1) -> None:
        self.says(Op.ADD_ACKS, words.encode_acks([(stream, count)]), ident=0)

    def reads(self, first: int, last: int, *, fence: bool = False, ident: int = 5) -> None:
        request = words.ReadEntriesRequest(LEDGER, KEY, first, last, 1 << 20, fence=fence)
        self.gets(Op.READ, request.encode(), ident=ident)

    def answers(
        self, complete_to: int, *records: bytes, known: bool = True, ident: int = 5
    ) -> None:
        body = words.encode_read_head(complete_to, -1) + b"".join(records)
        self.says(Op.REPLY, body, ident=ident, flags=words.FLAG_PROVES_ABSENCE if known else 0)

    def fences(self, last_entry: int = -1, *, known: bool = True) -> None:
        self.gets(Op.FENCE, words.LedgerRequest(LEDGER, KEY).encode(), ident=9)
        body = words.encode_lac_and_last(-1, last_entry)
        self.says(Op.REPLY, body, ident=9, flags=words.FLAG_PROVES_ABSENCE if known else 0)


@pytest.fixture
def broken() -> list[str]:
    return []


@pytest.fixture
def bookie(broken: list[str]) -> Bookie:
    bookie = Bookie(BookieOracle(broken.append))
    bookie.opens()
    return bookie


def test_kept_words_pass(bookie: Bookie, broken: list[str]) -> None:
    other = Bookie(bookie.oracle, "b2")
    other.opens()
    for each in (bookie, other):
        each.stores(record(0), record(1))
    bookie.stores(record(2, lac=1))
    bookie.reads(0, 9)
    bookie.answers(9, record(0), record(1), record(2, lac=1))
    bookie.reads(0, 9)
    bookie.answers(0, record(0))  # cut by a byte limit
    bookie.reads(0, 9)
    bookie.answers(-1, known=False)  # limbo
    bookie.fences(2)

    assert broken == []
    assert bookie.oracle.confirmed_entries == 2


def test_an_ack_before_the_sync(bookie: Bookie, broken: list[str]) -> None:
    bookie.gets(Op.ADD, record(0))
    bookie.acks(1)

    assert "G2" in broken[0]


def test_an_ack_of_another_bookies_sync(bookie: Bookie, broken: list[str]) -> None:
    bookie.gets(Op.ADD, record(0))
    bookie.oracle.on_durable("b2", record(0))
    bookie.acks(1)

    assert "G2" in broken[0]


def test_an_ack_of_more_than_came(bookie: Bookie, broken: list[str]) -> None:
    bookie.stores(record(0))
    bookie.acks(2)

    assert "H1" in broken[0]


def test_an_ack_after_a_fence(bookie: Bookie, broken: list[str]) -> None:
    bookie.fences()
    bookie.stores(record(0))

    assert "G4" in broken[0]


def test_an_ack_of_what_was_gathered_when_the_fence_was_answered(
    bookie: Bookie, broken: list[str]
) -> None:
    bookie.gets(Op.ADD, record(0))
    bookie.fences()
    bookie.oracle.on_durable("b1", record(0))
    bookie.acks(1)

    assert "G4" in broken[0]


def test_a_late_ack_of_what_was_durable_before_the_fence(bookie: Bookie, broken: list[str]) -> None:
    bookie.gets(Op.ADD, record(0))
    bookie.oracle.on_durable("b1", record(0))
    bookie.fences(0)
    bookie.acks(1)

    assert broken == []


def test_a_recovery_add_passes_the_fence(bookie: Bookie, broken: list[str]) -> None:
    bookie.fences()
    bookie.opens(recovery=True, stream=2)
    bookie.stores(record(0), stream=2)

    assert broken == []


def test_a_fencing_read_is_a_fence(bookie: Bookie, broken: list[str]) -> None:
    bookie.reads(0, 0, fence=True)
    bookie.answers(0)
    bookie.stores(record(0))

    assert "G4" in broken[0]


def test_a_denied_entry(bookie: Bookie, broken: list[str]) -> None:
    bookie.stores(record(0), record(1))
    bookie.reads(0, 1)
    bookie.answers(1, record(0))

    assert "H9" in broken[0]
    assert "[1]" in broken[0]


def test_a_read_that_was_asked_before_the_ack_may_miss_it(
    bookie: Bookie, broken: list[str]
) -> None:
    bookie.reads(0, 1)
    bookie.stores(record(0))
    bookie.answers(1)

    assert broken == []


def test_a_denied_last_entry(bookie: Bookie, broken: list[str]) -> None:
    bookie.stores(record(0), record(1))
    bookie.fences(0)

    assert "H9" in broken[0]


def test_a_denied_ledger(bookie: Bookie, broken: list[str]) -> None:
    bookie.stores(record(0))
    bookie.reads(0, 1)
    bookie.says(Op.REPLY, b"", ident=5, status=NoSuchLedger.code)

    assert "H9" in broken[0]


def test_a_list_that_lacks_an_entry(bookie: Bookie, broken: list[str]) -> None:
    bookie.stores(record(0), record(1), record(2))
    bookie.gets(Op.LIST_ENTRIES, words.LedgerRequest(LEDGER, KEY).encode(), ident=4)
    bookie.says(Op.REPLY, words.encode_entry_ranges([(0, 1), (2, 1)]), ident=4)

    assert "H9" in broken[0]


def test_different_bytes_of_one_entry(bookie: Bookie, broken: list[str]) -> None:
    other = Bookie(bookie.oracle, "b2")
    other.opens()
    bookie.stores(record(0))
    other.stores(record(0, payload=b"other"))

    assert "H15" in broken[0]


def test_a_lac_beyond_what_a_quorum_acknowledged(bookie: Bookie, broken: list[str]) -> None:
    bookie.stores(record(0))
    bookie.gets(Op.ADD, record(1, lac=0))

    assert "G3" in broken[0]


def test_who_lost_data_may_deny_it_once_the_ledger_is_closed_and_healed(
    bookie: Bookie, broken: list[str]
) -> None:
    """An entry that one bookie had, beyond the end of its ledger. Found by cluster seed 119."""
    bookie.stores(record(0))
    bookie.oracle.lossy_bookies["b1"] = None
    bookie.oracle.closed_ledgers[LEDGER] = None
    bookie.fences(-1)
    assert broken == []

    del bookie.oracle.lossy_bookies["b1"]
    bookie.fences(-1)
    assert "H9" in broken[0]


def test_a_bookie_on_emptied_disks_is_another_one(bookie: Bookie, broken: list[str]) -> None:
    """Its predecessor's ack counts beside its own: one ensemble may name both. Found by cluster seed 82."""
    bookie.stores(record(0))
    bookie.oracle.forget("b1")
    another = Bookie(bookie.oracle)
    another.opens()
    another.stores(record(0))
    another.gets(Op.WRITE_LAC, words.lac_frame(1, 0)[ENVELOPE_BYTES:])

    assert broken == []


def test_an_explicit_lac_beyond(bookie: Bookie, broken: list[str]) -> None:
    bookie.gets(Op.WRITE_LAC, words.lac_frame(1, 3)[ENVELOPE_BYTES:])

    assert "G3" in broken[0]


def test_an_explicit_lac_beyond_among_others(bookie: Bookie, broken: list[str]) -> None:
    bookie.stores(record(0))
    bookie.gets(Op.WRITE_LACS, words.encode_lacs({9: 7, 1: 0}.items()), ident=0)

    assert "G3" in broken[0]


def test_a_lost_record_of_a_common_frame(bookie: Bookie, broken: list[str]) -> None:
    bookie.opens(stream=2)
    both = [record(0), record(1)]
    sizes = [len(each) for each in both]
    bookie.gets(Op.ADD_MANY, words.encode_add_many_items([1, 2], sizes) + b"".join(both), ident=2)
    bookie.oracle.on_durable("b1", both[1])

    bookie.acks(1, stream=2)
    assert broken == []
    bookie.acks(1, stream=1)
    assert broken


class Metadata:
    def __init__(self) -> None:
        self.broken: list[str] = []
        self.oracle = MetadataOracle(self.broken.append)

    def says(self, machine: str, to: str, message: Vote | VoteReply | Heartbeat) -> None:
        body = memoryview(encode_raft(message))
        self.oracle.on_frame(machine, to, Op.META_RAFT, 0, 0, 0, body)


def test_one_vote_a_term_is_fine() -> None:
    metadata = Metadata()
    metadata.says("m1", "m2", Vote(4, "id1", 1, 1, False))
    for _ in range(2):
        metadata.says("m2", "m1", VoteReply(4, "id2", True))
    metadata.says("m3", "m2", VoteReply(4, "id3", False))
    metadata.says("m3", "m1", VoteReply(5, "id3", True))
    metadata.says("m1", "m2", Heartbeat(4, "id1", 0, 0))
    metadata.oracle.on_applied("m1", 1, b"a")
    metadata.oracle.on_applied("m2", 1, b"a")

    assert metadata.broken == []


def test_two_votes_in_a_term() -> None:
    metadata = Metadata()
    metadata.says("m2", "m1", VoteReply(4, "id2", True))
    metadata.says("m2", "m3", VoteReply(4, "id2", True))

    assert "M4" in metadata.broken[0]


def test_a_vote_for_another_after_the_own_campaign() -> None:
    metadata = Metadata()
    metadata.says("m2", "m1", Vote(4, "id2", 1, 1, False))
    metadata.says("m2", "m3", VoteReply(4, "id2", True))

    assert "M4" in metadata.broken[0]


def test_two_leaders_of_a_term() -> None:
    metadata = Metadata()
    metadata.says("m1", "m2", Heartbeat(4, "id1", 0, 0))
    metadata.says("m3", "m2", Heartbeat(4, "id3", 0, 0))

    assert "M1" in metadata.broken[0]


def test_two_commands_at_an_index() -> None:
    metadata = Metadata()
    metadata.oracle.on_applied("m1", 1, b"a")
    metadata.oracle.on_applied("m2", 1, b"b")

    assert "M2" in metadata.broken[0]


def test_another_state_after_the_same_index_is_found() -> None:
    """H105: equal logs that do not make equal states."""
    metadata = Metadata()
    metadata.oracle.on_state("m1", 7, 5)
    metadata.oracle.on_state("m2", 7, 5)
    assert not metadata.broken

    metadata.oracle.on_state("m3", 7, 6)
    assert metadata.broken == ["M2: m3 has another state after index 7 than other nodes"]
