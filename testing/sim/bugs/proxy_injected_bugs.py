"""Injected bugs of proxies and producers. `ProxiedRun` must find each of them.

    python -m distributedlog.testing.sim.bugs.proxy_injected_bugs [SEEDS [BUG]]

prints a table: bug | seed | found by. ``BUG`` is a part of a name. The search for a bug begins at the seed
that found it last (`STARTS`).
"""

import sys
from dataclasses import replace
from typing import Any

from ....bookie.client.bookie_client import BookieClient
from ....log.format.dlsn import DLSN
from ....log.format.producer_table import FrameSpan, ProducerTable
from ....log.read.entry_queue import EntryQueue
from ....log.takeover import takeover
from ....log.takeover.producer_recovery import recover_producers
from ....log.write.segment_roller import SegmentRoller
from ....log.write.send_queue import SendQueue
from ....proxy.client.entry_source import EntrySource
from ....proxy.client.producer_sink import ProducerSink
from ....proxy.protocol.proxy_messages import Refusal
from ....proxy.read.tail_feed import TailFeed
from ....proxy.write import produce_session
from ....proxy.write.log_manager import LogManager
from ....runtime.interfaces.errors import Moved, ProducerForgotten
from ..workloads.proxy_world import ProxiedRun
from ..workloads.seed import CHAOS_S
from ..world.bug_injection import Patch, first_seed, table_of

_send_ready = SendQueue._send_ready
_read = BookieClient.read
_open_producer = produce_session._open_producer
_resumption = EntrySource._resume_request
_store = ProducerTable.add_span
_enter = ProducerSink._use_stream
_send_rest = ProducerSink._send_unsent
_give = EntryQueue.add_entry
_give_up = LogManager.hand_off


async def _nobody_is_known(*args: Any) -> ProducerTable | None:
    """A takeover begins with an empty producer table."""
    table = await recover_producers(*args)
    return None if table is None else ProducerTable(next_number=table.next_number)


def _told_when_sent(self: SendQueue) -> None:
    """A frame is acknowledged when its entry was sent to the ledger writer."""
    _send_ready(self)
    if isinstance(self.sink, SegmentRoller) and self._in_flight:
        self.handle_confirmed(self.sink.current_target, self._in_flight[-1].entry)


async def _no_fence(self: BookieClient, ledger: int, key: bytes, timeout_s: float) -> Any:
    """A takeover reads the LAC instead of fencing, so that the former owner can still write."""
    return await self.read_lac(ledger, key, timeout_s)


async def _reads_do_not_fence(self: BookieClient, *args: Any, **kwargs: Any) -> Any:
    return await _read(self, *args, **{**kwargs, "fence": False})


async def _forgotten_is_new(writer: Any, request: Any) -> Any:
    """A forgotten producer continues at the sequence number that it claims."""
    try:
        return await _open_producer(writer, request)
    except ProducerForgotten:
        session = await writer.sequenced_writer.open_producer(request.producer)
        producers = writer.send_queue.producers
        producers._active[session.number].next_sequence = request.acked_through
        producers.table.rows[session.number].next_sequence = request.acked_through
        return replace(session, next_sequence=request.acked_through)


def _begins_where_it_says(self: ProducerTable, span: FrameSpan, segment: int, entry: int) -> None:
    """The producer table accepts any first sequence number of a producer, also when it is rebuilt."""
    row = self.rows.get(span.producer_number)
    if row is not None and not row.stored_frames and not row.next_sequence:
        row.next_sequence = span.sequence
    _store(self, span, segment, entry)


def _whatever_is_in_the_ring(self: TailFeed) -> dict[Any, Any]:
    """Truncated entries stay in the cache of a read proxy."""
    return {}


def _with_one_more(self: ProducerSink) -> None:
    """A resent frame also contains the first record of the next one."""
    sent, index = self._unacked, self._sent_count
    if self._stream is not None and len(sent) - index > 1:
        (batch, first, count, size), next_batch = sent[index], sent[index + 1][0]
        batch.payloads = [*batch.payloads, next_batch.payloads[0]]
        batch.txids = [*batch.txids, next_batch.txids[0]]
        sent[index] = batch, first, count + 1, size
        for later_index in range(index + 1, len(sent)):
            batch, first, count, size = sent[later_index]
            sent[later_index] = batch, first + 1, count, size
        self._next_sequence += 1
    _send_rest(self)


def _all_of_it_again(self: ProducerSink, stream: Any) -> None:
    """A producer resends records that the log's new owner already has, as if they were new."""
    if self._producer and self._send_queue is not None and self._unacked:
        self._next_sequence = stream.opened.next_sequence
        self._clear_unacked()
        self._send_queue.return_to_queue()
    _enter(self, stream)


def _one_further(self: EntrySource, queue: Any) -> Any:
    """A reader continues elsewhere one entry after the next one."""
    resumption = _resumption(self, queue)
    assert resumption.dlsn is not None, "a resumed subscription has a position"
    segment, entry, _ = resumption.dlsn
    return replace(resumption, dlsn=DLSN(segment, entry + 1, 0), sequence_id=-1, proven=False)


def _whatever_comes(self: EntryQueue, columns: Any) -> None:
    """A reader does not check sequence IDs. Otherwise `_one_further` costs only time and loses no record."""
    self.next_sequence_id = None
    _give(self, columns)


async def _told_before_it_is_settled(self: LogManager, key: Any, next_proxy_id: str) -> bool:
    """Producers are redirected while their frames are still unacknowledged."""
    hosted_log = self.find_hosted(*key)
    if hosted_log is None:
        return False
    for stream in list(hosted_log.streams):
        if stream.unanswered:
            first = stream.unanswered[0][0]
            stream._is_reported = True
            stream._refuse(
                stream.number, Refusal(Moved("it moves", next_proxy_id), first, first, 0)
            )
    return await _give_up(self, key, next_proxy_id)


INJECTED_BUGS: dict[str, tuple[Patch, ...]] = {
    "a takeover begins with an empty table (H61)": (
        (takeover, "recover_producers", _nobody_is_known),
    ),
    "acknowledged before it is durable (G2)": ((SendQueue, "_send_ready", _told_when_sent),),
    "two owners: nobody is fenced (H60)": (
        (BookieClient, "fence", _no_fence),
        (BookieClient, "read", _reads_do_not_fence),
    ),
    "a retry is taken as new after eviction (H67)": (
        (produce_session, "_open_producer", _forgotten_is_new),
        (ProducerTable, "add_span", _begins_where_it_says),
    ),
    "the ring gives what was truncated (H188)": (
        (TailFeed, "_new_span_cache", _whatever_is_in_the_ring),
    ),
    "a frame is sent again with other borders (G9)": (
        (ProducerSink, "_send_unsent", _with_one_more),
    ),
    "what the new owner has is sent again (G9)": ((ProducerSink, "_use_stream", _all_of_it_again),),
    "a reader goes on one entry too far, and does not count (H192)": (
        (EntrySource, "_resume_request", _one_further),
        (EntryQueue, "add_entry", _whatever_comes),
    ),
    "told before it is settled (H76)": ((LogManager, "hand_off", _told_before_it_is_settled),),
}
STARTS = {
    "acknowledged before it is durable (G2)": 3,
    "a reader goes on one entry too far, and does not count (H192)": 10,
    "a retry is taken as new after eviction (H67)": 6,
    "two owners: nobody is fenced (H60)": 3,
    "the ring gives what was truncated (H188)": 4,
    "what the new owner has is sent again (G9)": 3,
    "told before it is settled (H76)": 14,
}
"""The seed at which the search begins, because it found the bug. The default is 0."""


def seed_that_finds(name: str, budget: int, *, chaos_s: float = CHAOS_S) -> tuple[int, str] | None:
    """Return the first of ``budget`` seeds that finds a bug and its failure, or None if it survives."""
    start = STARTS.get(name, 0)
    return first_seed(
        INJECTED_BUGS[name],
        range(start, start + budget),
        lambda seed: ProxiedRun(seed, chaos_s=chaos_s).run().failures,
    )


def main() -> int:
    """Print the table. Return 1 if a bug survived, otherwise 0."""
    return table_of(INJECTED_BUGS, seed_that_finds, sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
