"""Very many small ledgers: 10,000 recovered, 100,000 audited, a tenth of them first.

    python -m tests.cluster.many_ledgers_story --recovered 10000 --audited 100000

Metadata nodes and three bookies in processes of their own, with disks. Each ledger has two entries of 100
bytes on three bookies. Those to be recovered are left open, as by a writer that died; those to be audited are
closed, and one in a hundred lacks an entry on one bookie, which must be found. Said of each part, of a tenth
and then of all: seconds, CPU seconds and memory of who does it, of the metadata nodes and of the bookies.
What is a ledger's share must be the same for both.
"""

import argparse
import math
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import trio

from distributedlog import local_cluster, open_namespace
from distributedlog.bookie.client.bookie_client import AddStream, BookieClient
from distributedlog.bookie.format.entry import encode
from distributedlog.cluster.repair import ledger_audit as audit
from distributedlog.cluster.repair.auditor_election import RepairLeaderElection
from distributedlog.cluster.repair.ledger_audit import LedgerAudit
from distributedlog.ledger.model import ledger_transactions as transactions
from distributedlog.ledger.model.ledger_metadata import LedgerMetadata, LedgerState
from distributedlog.metadata.model.transaction import Transaction
from distributedlog.runtime.interfaces.errors import DistributedLogError
from tests.cluster.many_logs import cpu_s, rss_bytes

PAYLOAD = b"x" * 100
ENTRIES = 2
AT_ONCE = 16
A_TRANSACTION = 200
LACKS = 100
"""One in so many ledgers to be audited lacks its last entry on one bookie."""


class Always(RepairLeaderElection):
    """Who asks is the one that repairs: the bookies' own turn is an hour away."""

    async def is_elected(self) -> bool:
        return True


@dataclass(frozen=True)
class Used:
    """CPU seconds and bytes, now."""

    cpu_s: float
    rss: int

    @classmethod
    def of(cls, pids: list[int]) -> "Used":
        ticks = os.sysconf("SC_CLK_TCK")
        stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
        spent = sum(int(fields[11]) + int(fields[12]) for fields in stats) / ticks
        return cls(spent, sum(map(rss_bytes, pids)))


class Said:
    """A line for what was done."""

    def __init__(self, nodes: dict[str, list[int]]) -> None:
        self._nodes = nodes
        self._before = {kind: Used.of(pids) for kind, pids in nodes.items()}
        self._own = Used(cpu_s(), rss_bytes())
        self._began = time.monotonic()

    def __call__(self, what: str, count: int) -> None:
        took_s, own_s = time.monotonic() - self._began, cpu_s() - self._own.cpu_s
        grown = (rss_bytes() - self._own.rss) / 2**20
        said = [f"here {own_s:.1f} s, {1e6 * own_s / count:.0f} us each, {grown:+.1f} MiB"]
        for kind, pids in self._nodes.items():
            before, now = self._before[kind], Used.of(pids)
            spent = now.cpu_s - before.cpu_s
            said.append(
                f"{kind} {spent:.1f} s, {1e6 * spent / count:.0f} us each,"
                f" {(now.rss - before.rss) / 2**20:+.1f} to {now.rss / 2**20:.0f} MiB"
            )
        print(f"{count:,} {what} in {took_s:.1f} s; CPU: {'; '.join(said)}", flush=True)


async def make(namespace: Any, count: int, *, closed: bool) -> list[int]:
    """Ledgers with their entries; ids, in order."""
    made: list[int] = []
    while len(made) < count:
        batch = []
        for _ in range(min(A_TRANSACTION, count - len(made))):
            record = (await namespace.ledgers.prepare()).metadata
            if closed:
                record = replace(
                    record,
                    state=LedgerState.CLOSED,
                    last_entry=ENTRIES - 1,
                    length=ENTRIES * len(PAYLOAD),
                )
            batch.append(record)
        share = Transaction()
        for record in batch:
            share += transactions.creation_ops(record, ())
        assert (await namespace.metadata.transact(share)).succeeded
        await _fill(namespace, batch, closed, len(made))
        made += [record.ledger_id for record in batch]
    return made


async def _fill(namespace: Any, batch: list[LedgerMetadata], lacks: bool, at: int) -> None:
    left, streams, done = 0, list[AddStream](), trio.Event()
    clients: dict[str, BookieClient] = {}

    def refused(position: int, error: DistributedLogError) -> None:
        raise AssertionError(f"record {position} was refused: {error}")

    def add(client: BookieClient, record: LedgerMetadata, entries: int) -> None:
        def acked(count: int) -> None:
            nonlocal left
            if count == entries:
                left -= 1
                if not left:
                    done.set()

        stream = client.open_stream(
            record.ledger_id,
            record.key,
            recovery=False,
            fragment_epoch=record.ensembles[0].epoch,
            on_acked=acked,
            on_refused=refused,
        )
        streams.append(stream)
        for entry in range(entries):
            size = (entry + 1) * len(PAYLOAD)
            raw = encode(record.ledger_id, entry, size, entry - 1, [PAYLOAD], len(PAYLOAD))
            stream.send(raw)

    for bookie in {bookie for record in batch for bookie in record.bookies()}:
        client = namespace.ledgers.pool.get(bookie)
        assert client is not None, "all bookies are there"
        clients[bookie] = client
    for number, record in enumerate(batch, at):
        for place, bookie in enumerate(record.ensembles[0].bookies):
            left += 1
            add(clients[bookie], record, ENTRIES - (lacks and not place and not number % LACKS))
    with trio.fail_after(60):
        await done.wait()
    for stream in streams:
        stream.close()


async def recover(uri: str, ids: list[int], say: Said) -> None:
    """As readers and repairers do, several at once; each has all its entries."""
    async with open_namespace(uri) as namespace, trio.open_nursery() as nursery:
        left = ids[::-1]

        async def some() -> None:
            while left:
                closed = await namespace.ledgers.recover(left.pop())
                assert closed.last_entry == ENTRIES - 1

        for _ in range(AT_ONCE):
            nursery.start_soon(some)
    say("recovered", len(ids))


async def look(uri: str, count: int, say: Said) -> int:
    """One pass, as the elected bookie does it each hour; how many ledgers it noted."""
    async with open_namespace(uri) as namespace:
        ledgers: Any = namespace.ledgers
        await ledgers.prepare()  # the bookies are known
        election = Always(namespace.metadata, "", lambda: 0)
        passes = LedgerAudit(namespace.metadata, ledgers.pool, election, every_s=math.inf)
        await passes.audit_all()
    say("audited", count)
    return passes.recorded_ledgers


async def play(recovered: int, audited: int, metadata_nodes: int) -> None:
    """A tenth, then all."""
    for part, whole in (("recovered", recovered), ("audited", audited)):
        for count in (whole // 10, whole):
            if not count:
                continue
            with TemporaryDirectory() as directory:
                async with local_cluster(
                    directory, processes=True, metadata_nodes=metadata_nodes
                ) as cluster:
                    nodes = {
                        kind: [node.pid for node in cluster.nodes if node.kind == kind]
                        for kind in ("metadata", "bookie")
                    }
                    say = Said(nodes)
                    async with open_namespace(cluster.uri) as namespace:
                        ids = await make(namespace, count, closed=part == "audited")
                    say(f"ledgers made to be {part}", count)
                    if part == "recovered":
                        await recover(cluster.uri, ids, Said(nodes))
                    else:
                        noted = await look(cluster.uri, count, Said(nodes))
                        assert noted == math.ceil(count / LACKS), noted


def main() -> None:
    """The figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--recovered", type=int, default=10_000)
    parser.add_argument("--audited", type=int, default=100_000)
    parser.add_argument("--metadata-nodes", type=int, default=3)
    parser.add_argument("--rest-s", type=float, default=0.0, help="after each ledger audited")
    given = parser.parse_args()
    audit.LEDGER_PAUSE_S = given.rest_s
    trio.run(play, given.recovered, given.audited, given.metadata_nodes)


if __name__ == "__main__":
    main()
