"""Retention under load and under kills of who does it: ``python -m tests.cluster.retention_story``.

Real writers, readers, retention and purger over the model of ledgers, in virtual time. Each log rolls a
segment with each record or two; the janitor is killed now and then, and another one is elected when its
lease would have ended, or at once, beside the old one, which believes that it is elected for as long as its
lease. At each second: of no log went what is younger than its age, and of all of them no more is there than
what was written within the age and what retention may be late. Each reader that was behind was told once,
with the first position that is left, from which on no record is missing.
"""

import argparse
import time
from bisect import bisect_left
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import trio
from trio.testing import MockClock

from distributedlog.cluster.gc.retention import CHECKS_PER_AGE, EVERY_S, Retention
from distributedlog.cluster.gc.segment_purger import SegmentPurger
from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.format.record import LogRecord
from distributedlog.log.model.log_keys import state_key
from distributedlog.log.model.log_state import LogState
from distributedlog.log.namespace import Namespace
from distributedlog.log.read.log_reader import LogReader
from distributedlog.log.segments.replaced_ledgers import DeletionOps
from distributedlog.metadata.model.transaction import Delete, Transaction
from distributedlog.runtime.interfaces.errors import LogTruncated
from tests.log.conftest import World

LEASE_S = 6.0
"""After a kill nobody is elected for so long."""
GRACE_S = 10.0


@dataclass
class Played:
    """What the story asks for, and what came of it."""

    logs: int
    segments_per_s: float
    age_s: float
    minutes: float
    kills: int
    seed: int
    segments: int = 0
    gone: int = 0
    told: int = 0
    read_on: int = 0
    kept_max: list[int] = field(default_factory=list)
    """The most segments that were there at once, a minute."""
    share_max: float = 0.0
    """The most that was there, of what may be, once not all is young enough."""
    killed_at: list[float] = field(default_factory=list)

    def may_be_kept_s(self, now: float) -> float:
        """How long ago a segment may have been closed that is still there."""
        look_s = max(EVERY_S, self.age_s / CHECKS_PER_AGE) + EVERY_S
        # It is seen closed a look later, is old enough a look later, and waits for the purger's grace.
        kept_s = self.age_s + 2 * look_s + 2 * GRACE_S
        # A kill stops the clock until the next one is elected, which begins to count and to look anew, and
        # takes the purger's grace once more; while there are two, they hinder each other.
        for at in reversed(self.killed_at):
            if at < now - kept_s:
                break
            kept_s += LEASE_S + 2 * EVERY_S + 2 * GRACE_S
        return kept_s


class Elected:
    """Who believes that it is the janitor."""

    won = True

    async def is_elected(self) -> bool:
        return self.won


async def play(one: Played) -> Played:
    """Raises where something went early, or stayed, or a reader was told wrongly."""
    chance = Random(one.seed)
    async with trio.open_nursery() as nursery:
        world = World(nursery)
        given_back: list[int] = []
        share = world.ledgers.delete_ops

        async def noted(ledger_id: int) -> Transaction:
            given_back.append(ledger_id)
            return await share(ledger_id)

        options = {"segment_bytes_max": 1, "in_flight_bytes_max": 1 << 16}
        ns = world.namespace(nursery, "clients", options)
        names = [f"log-{n}" for n in range(one.logs)]
        await ns.set({"retention_s": one.age_s, "retention_segments_min": 1})
        acked_at: dict[str, list[float]] = {name: [] for name in names}
        for name in names:
            await ns.create_log(name)
            nursery.start_soon(_write, ns, name, one, acked_at[name])
        nursery.start_soon(_janitors, world, one, noted, chance)
        nursery.start_soon(_bookies, world, given_back)
        for name in names[: max(2, one.logs // 50)]:
            nursery.start_soon(_tail, ns, name)
            nursery.start_soon(_lag, ns, name, one, chance.uniform(1, one.age_s))
        ids = {name: await ns.resolve_name(name) for name in names}
        oldest = dict.fromkeys(names, 1)
        first_left = dict.fromkeys(names, 1)
        for second in range(int(one.minutes * 60)):
            await trio.sleep(1)
            now, kept = trio.current_time(), 0
            for name in names:
                found = await world.metadata.get(state_key(ids[name]))
                assert found is not None
                state = LogState.decode(found.value)
                for segment in range(oldest[name], state.earliest.segment):
                    age_s = now - acked_at[name][segment - 1]
                    assert age_s >= one.age_s, f"{name}: segment {segment} went after {age_s:.1f} s"
                oldest[name] = state.earliest.segment
                first_left[name] = state.first_segment
                kept += state.last_segment - state.first_segment + 1
            if second % 60 == 0:
                one.kept_max.append(0)
            one.kept_max[-1] = max(one.kept_max[-1], kept)
            since = now - one.may_be_kept_s(now)
            # Each log has one segment open, one is kept in any case, one may be between the two.
            young = sum(len(at) - bisect_left(at, since) + 3 for at in acked_at.values())
            assert kept <= young, f"{kept} segments are there, {young} at most are young enough"
            if young < sum(map(len, acked_at.values())):
                one.share_max = max(one.share_max, kept / young)
        one.segments = sum(map(len, acked_at.values()))
        one.gone = sum(first_left.values()) - one.logs
        nursery.cancel_scope.cancel()
    return one


async def _write(ns: Namespace, name: str, one: Played, acked_at: list[float]) -> None:
    """A record or two a segment; ``acked_at[n - 1]`` is when the last one of segment n was acknowledged."""
    async with ns.open_log(name).open_writer() as writer:
        due_at = trio.current_time()
        while True:
            dlsn = await writer.write(LogRecord(writer.last_txid + 1, b"x"))
            now = trio.current_time()
            if dlsn.segment > len(acked_at):
                acked_at += [now] * (dlsn.segment - len(acked_at))
                due_at += 1 / one.segments_per_s
                await trio.sleep_until(due_at)
            else:
                acked_at[-1] = now  # the roll was not done yet


async def _janitors(world: World, one: Played, share: DeletionOps, chance: Random) -> None:
    """One after the other; a killed one stops in mid-step, or goes on for a lease beside its successor."""
    each_s = one.minutes * 60 / (one.kills + 1)
    async with trio.open_nursery() as nursery:
        for number in range(one.kills + 1):
            election = Elected()
            purger = SegmentPurger(world.metadata, election, grace_s=GRACE_S)
            purger.deletion_ops_of = share  # type: ignore[assignment,method-assign]
            janitor = await nursery.start(_janitor, Retention(world.metadata, election), purger)
            if number == one.kills:
                break
            await trio.sleep(each_s * chance.uniform(0.8, 1.0))
            one.killed_at.append(trio.current_time())
            if number % 2:
                nursery.start_soon(_end_later, election)
            else:
                janitor.cancel()
                await trio.sleep(LEASE_S)


async def _janitor(
    retention: Retention, purger: SegmentPurger, task_status: trio.TaskStatus[trio.CancelScope]
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(retention.run)
        nursery.start_soon(purger.run)
        task_status.started(nursery.cancel_scope)


async def _end_later(election: Elected) -> None:
    await trio.sleep(LEASE_S)
    election.won = False


async def _bookies(world: World, given_back: list[int]) -> None:
    """They remove what is to be deleted, and the key with the last of them."""
    while True:
        await trio.sleep(1)
        asked, given_back[:] = set(given_back), []
        ids = []
        for ledger_id in asked:
            found = await world.metadata.get(b"ledger/%016x" % ledger_id)
            if found is not None and b"deleting" in found.value:
                ids.append(ledger_id)
        for at in range(0, len(ids), 1000):
            deletes = [Delete(b"ledger/%016x" % ledger_id) for ledger_id in ids[at : at + 1000]]
            await world.metadata.transact(Transaction((), tuple(deletes)))
        for ledger_id in ids:
            world.ledgers.stores.pop(ledger_id, None)
        world.ledgers.writers[:] = [w for w in world.ledgers.writers if not w.over]


async def _tail(ns: Namespace, name: str) -> None:
    """Is never told of a truncation, and misses nothing."""
    async with ns.open_log(name).open_reader() as reader:
        expected = 0
        async for record in reader:
            assert record.txid == expected, f"{name}: {record.txid} came after {expected - 1}"
            expected += 1


async def _lag(ns: Namespace, name: str, one: Played, start_s: float) -> None:
    """Reads one record, falls behind, is told, goes on where it was told; again and again."""
    await trio.sleep(start_s)
    dlsn: DLSN | None = None
    while True:
        config = {"read_ahead_bytes": 1, "read_bytes": 1}
        log = ns.open_log(name, config=config)
        async with log.open_reader(dlsn=dlsn) as reader:
            try:
                first = await reader.read_next()
            except LogTruncated as error:  # once more, in between
                dlsn = DLSN.parse(error.first)
                continue
            assert first is not None
            if dlsn is not None:
                assert first.dlsn == dlsn
                one.read_on += 1
            await trio.sleep(2 * one.age_s + 60)
            told = [error async for error in _errors(reader, first.txid)]
            assert len(told) == 1, f"{name}: a reader behind was told {told}"
            one.told += 1
            dlsn = DLSN.parse(told[0].first)


async def _errors(reader: LogReader, txid: int) -> AsyncIterator[LogTruncated]:
    """What a reader behind is told; what it had fetched before comes without a gap."""
    while True:
        try:
            record = await reader.read_next()
        except LogTruncated as error:
            yield error
            return
        assert record is not None
        assert record.txid == txid + 1, f"{record.txid} came after {txid}, without a word"
        txid = record.txid


def played(**given: Any) -> Played:
    """In virtual time."""
    one = Played(**given)

    async def main() -> Played:
        return await play(one)

    return trio.run(main, clock=MockClock(autojump_threshold=0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--logs", type=int, default=200)
    parser.add_argument("--segments-per-s", type=float, default=5.0, help="of each log")
    parser.add_argument("--age-s", type=float, default=60.0)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    began = time.perf_counter()
    one = played(**vars(parser.parse_args()))
    print(
        f"{one.logs} logs, {one.segments:,} segments in {one.minutes:g} virtual minutes, {one.gone:,} gone, "
        f"janitor killed {one.kills} times; at most {max(one.kept_max):,} there at once, "
        f"{one.share_max:.0%} of what may be, by the minute {one.kept_max}; {one.told} readers were behind "
        f"and told, {one.read_on} read on; {time.perf_counter() - began:.0f} s"
    )


if __name__ == "__main__":
    main()
