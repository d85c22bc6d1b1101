"""A log whose writer is killed with -9 again and again: what it was told is there, and nothing between.

    python -m tests.cluster.writer_kills --writes 100000 --kills 200

Scenario 5 of DistributedLog's. A cluster of real processes; a writer process that takes the log over, writes
in a pipeline and says on a pipe which record is where; it is killed a drawn moment after it has begun, and
the next one begins. After each kill the log is read on from where it was read to: records of a life are its
first ones, in order and without a gap, equal to the byte, up to its last acknowledged one at least; DLSNs and
sequence ids ascend, the latter by one. At the end the whole log is read again, and is the same.
"""

import argparse
import os
import random
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory

from distributedlog import DLSN, Position
from distributedlog.blocking import Log, Namespace, PendingWrite, local_cluster, open_namespace
from distributedlog.cluster.local.child_processes import environment

ROOT = Path(__file__).parents[2]
LOG = "killed"
UNDER_WAY_MAX = 300
LONE_SHARE = 0.1
"""So many lives write one record after the other, durably, and no pipeline."""
BEGIN_S = 60.0


def payload(life: int, number: int) -> bytes:
    """Record ``number`` of a writer's life: its bytes are known to whoever reads it."""
    size = blake2b(b"%d/%d" % (life, number), digest_size=2).digest()
    return b"%d/%d " % (life, number) + bytes(size[:1]) * (int.from_bytes(size, "little") % 300)


def write_and_tell(uri: str, life: int, lone: bool) -> None:
    """A writer's life: until it is killed."""
    with open_namespace(uri) as namespace:
        writer = namespace.open_log(LOG).open_writer(takeover=True)
        under_way: list[PendingWrite] = []
        number = told = 0
        while True:
            pending = writer.submit(payload(life, number))
            number += 1
            under_way.append(pending)
            if lone or len(under_way) >= UNDER_WAY_MAX:
                under_way[0 if lone else len(under_way) // 3].result()
            done = 0
            while done < len(under_way) and under_way[done].done():
                done += 1
            if done:
                lines = [
                    b"%d %s\n" % (told + n, str(one.result()).encode())
                    for n, one in enumerate(under_way[:done])
                ]
                os.write(1, b"".join(lines))  # in the kernel at once: a kill takes nothing back
                told += done
                del under_way[:done]


@dataclass
class Played:
    """What came of it."""

    writes: int = 0
    """That were acknowledged."""
    kills: int = 0
    unknown: int = 0
    """Records that are in the log and were never acknowledged."""
    acked: dict[int, list[DLSN]] = field(default_factory=dict)
    """Life to the places of its records, from 0."""
    found: dict[int, int] = field(default_factory=dict)
    """Life to how many of its records have been read."""
    records: int = 0
    """That have been read."""


def one_life(uri: str, life: int, lasts_s: float, lone: bool) -> list[DLSN]:
    """A writer, killed so long after its first word; where what it was told is."""
    command = [sys.executable, "-m", "tests.cluster.writer_kills", "--child", uri, str(life)]
    child = subprocess.Popen(
        command + ["--lone"] * lone, stdout=subprocess.PIPE, env=environment(), cwd=ROOT
    )
    assert child.stdout is not None
    try:
        ready, _, _ = select.select([child.stdout], [], [], BEGIN_S)
        assert ready, f"life {life} wrote nothing within {BEGIN_S:g} s"
        until = time.monotonic() + lasts_s
        said = b""
        while (left := until - time.monotonic()) > 0:
            if select.select([child.stdout], [], [], left)[0]:
                some = os.read(child.stdout.fileno(), 1 << 16)
                assert some, f"life {life} ended by itself"
                said += some
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    said += child.stdout.read()
    child.stdout.close()
    lines = [line.split() for line in said.split(b"\n")[:-1]]
    assert [int(number) for number, _ in lines] == [*range(len(lines))]
    return [DLSN.parse(dlsn.decode()) for _, dlsn in lines]


def read_on(log: Log, one: Played, position: Position | None) -> Position:
    """Judge what is there from ``position`` on, up to what is readable now."""
    last = None
    with log.open_reader(position=position, to="end") as reader:
        for record in reader:
            if last is not None:
                assert last.dlsn < record.dlsn, f"{last.dlsn} before {record.dlsn}"
            assert record.sequence_id == one.records, f"{record.dlsn}: a gap in the sequence ids"
            life, number = map(int, record.payload.split(b" ")[0].split(b"/"))
            assert record.payload == payload(life, number), f"{record.dlsn} has other bytes"
            assert life == max([life, *one.found]), f"{record.dlsn}: life {life} after a later one"
            assert number == one.found.get(life, 0), (
                f"{record.dlsn}: {life}/{number} is out of turn"
            )
            one.found[life] = number + 1
            if number < len(one.acked.get(life, [])):
                assert one.acked[life][number] == record.dlsn, f"{record.dlsn} moved"
            one.records += 1
            last = record
        at = reader.position
    assert at is not None
    return at


def play(namespace: Namespace, uri: str, *, writes: int, kills: int, seed: int) -> Played:
    """Raises `AssertionError` where a promise was broken."""
    chance, one = random.Random(seed), Played()
    namespace.create_log(LOG, txids="count")
    log = namespace.open_log(LOG)
    position: Position | None = None
    life, per_s = 0, 2000.0
    while one.kills < kills or one.writes < writes:
        lone = chance.random() < LONE_SHARE
        wanted = max(1.0, (writes - one.writes) / max(1, kills - one.kills))
        lasts_s = min(5.0, chance.uniform(0.0, 2.0) * wanted / per_s)
        began = time.monotonic()
        one.acked[life] = one_life(uri, life, lasts_s, lone)
        one.kills += 1
        one.writes += len(one.acked[life])
        if not lone and lasts_s > 0.05 and one.acked[life]:
            per_s = 0.8 * per_s + 0.2 * len(one.acked[life]) / lasts_s
        # Who comes next recovers it: until then only what was acknowledged is sure to be readable soon.
        log.open_writer(takeover=True).close()
        position = read_on(log, one, position)
        got, acked = one.found.get(life, 0), len(one.acked[life])
        assert got >= acked, f"G3: life {life} was told of {acked} records, {got} are there"
        one.unknown += got - acked
        life += 1
        if one.kills % 20 == 0:
            took_s = time.monotonic() - began
            print(f"{one.kills} kills, {one.writes:,} writes, {took_s:.1f} s the last", flush=True)
    again = Played(acked=one.acked)
    assert read_on(log, again, None) == position
    assert (again.records, again.found) == (one.records, one.found)
    assert log.count() == one.records
    return one


def main() -> None:
    """The campaign, or a life of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--writes", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--child", nargs=2, metavar=("URI", "LIFE"))
    parser.add_argument("--lone", action="store_true")
    given = parser.parse_args()
    if given.child:
        write_and_tell(given.child[0], int(given.child[1]), given.lone)
        return
    with TemporaryDirectory() as directory, local_cluster(directory) as cluster:
        began = time.monotonic()
        with open_namespace(cluster.uri) as namespace:
            one = play(
                namespace, cluster.uri, writes=given.writes, kills=given.kills, seed=given.seed
            )
    print(
        f"{one.writes:,} writes acknowledged, {one.kills} kills, {one.records:,} records in the log, of them "
        f"{one.unknown:,} whose outcome nobody was told; all there, in order, once, "
        f"in {time.monotonic() - began:.0f} s"
    )


if __name__ == "__main__":
    main()
