"""The acceptance's line "bad input", on real processes: one typed error each, no hang, no loss."""

import hashlib
import json
import random
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from distributedlog import LogRecord, TransactionIdOutOfOrder, open_namespace
from distributedlog.cluster.local.child_processes import environment
from distributedlog.log.format.record import RECORD_BYTES_MAX
from tests import preloaded
from tests.cluster import garbage, witness
from tests.cluster.story import Cluster, Served, dlog

pytestmark = pytest.mark.processes

ENTRIES = 150
MEMORY_GROWTH_MAX = 32 * 1024 * 1024
WRITE_S_MAX = 5.0
"""Of one write while strangers knock; a quiet machine takes milliseconds."""
BLOCK = 4096


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """One metadata node and three bookies with small journal files."""
    config = tmp_path / "bookie.toml"
    config.write_text("[store]\njournal_file_bytes = 4194304\n")
    monkeypatch.setenv("DLOG_SERVE_BOOKIE_CONFIG", str(config))
    with Cluster.planned(tmp_path, bookies=3, metadata_nodes=1) as made:
        made.start()
        yield made


def _payloads(seed: int = 1) -> list[bytes]:
    chance = random.Random(seed)
    return [b"%d " % number + chance.randbytes(1000) for number in range(ENTRIES)]


def _stop(cluster: Cluster, *names: str) -> None:
    """A clean end: its last checkpoint is made."""
    served = [cluster.served.pop(name) for name in names]
    for one in served:
        assert one.process.stdin is not None
        one.process.stdin.close()
    for one in served:
        assert one.process.wait(timeout=20) == 0
        assert one.process.stdout is not None
        one.process.stdout.close()


def _fails(code: int, done: "subprocess.CompletedProcess[bytes]") -> str:
    """The one line of the error."""
    assert done.returncode == code, (done.args, done.returncode, done.stderr)
    errors = [line for line in done.stderr.decode().splitlines() if line.startswith("dlog: error:")]
    assert len(errors) == 1, done.stderr
    assert b"Traceback" not in done.stderr
    return errors[0]


def _digest(cluster: Cluster, name: str) -> str:
    done = cluster.run("log", "read", name, "--format", "frames")
    assert done.returncode == 0, done.stderr
    return hashlib.sha256(done.stdout).hexdigest()


def _digest_of(payloads: list[bytes]) -> str:
    frames = b"".join(len(one).to_bytes(4, "little") + one for one in payloads)
    return hashlib.sha256(frames).hexdigest()


# --- what a client is given -----------------------------------------------------------------------


def test_a_clients_mistakes_are_one_typed_error_each(cluster: Cluster) -> None:
    """An unknown scheme, an unknown log, an oversize record, a txid that goes down, a silent quorum."""
    error = _fails(2, cluster.run("log", "list", "--uri", "zookeeper://127.0.0.1:1/x"))
    assert "InvalidUri (2050)" in error
    assert "distributedlog://" in error

    error = _fails(3, cluster.run("log", "write", "absent", input=b"x\n"))
    assert "LogNotFound (510)" in error
    assert "dlog log create absent" in error

    lines = b"one\ntwo\n" + b"x" * (RECORD_BYTES_MAX + 1) + b"\nnever\n"
    done = cluster.run("log", "write", "large", "--create", input=lines)
    error = _fails(5, done)
    assert "RecordTooLarge (413)" in error
    assert "line 3" in error
    assert b"2 records are certainly stored" in done.stderr
    assert cluster.run("log", "read", "large").stdout == b"one\ntwo\n"

    down = b"".join(b'{"txid": %d, "payload": "%d"}\n' % (txid, txid) for txid in (5, 7, 6, 8))
    created = cluster.run("log", "create", "down", "--txid-policy", "strict")
    assert created.returncode == 0, created.stderr
    done = cluster.run("log", "write", "down", "--format", "jsonl", input=down)
    error = _fails(5, done)
    assert "TransactionIdOutOfOrder (513)" in error
    assert cluster.run("log", "read", "down").stdout == b"5\n7\n"
    trio.run(_lower_txids, cluster.uri)

    cluster.served["metadata1"].signal(
        signal.SIGSTOP
    )  # a quorum that takes connections and is silent
    try:
        error = _fails(4, cluster.run("log", "list", "--timeout", "2"))
        assert "QuorumUnreachable (503)" in error
        assert "within 2 s" in error, "30 s without the option"
        host, port = cluster.served["metadata1"].node.address
        assert f"{host}:{port}" in error
    finally:
        cluster.served["metadata1"].signal(signal.SIGCONT)


async def _lower_txids(uri: str) -> None:
    """Refused by the call; the writer goes on, and nothing refused is written."""
    async with open_namespace(uri) as namespace:
        await namespace.create_log("lower", txids="strict")
        log = namespace.open_log("lower")
        async with log.open_writer() as writer:
            await writer.write(LogRecord(5, b"5"))
            with pytest.raises(TransactionIdOutOfOrder):
                await writer.write(LogRecord(4, b"4"))
            await writer.write(LogRecord(5, b"5 again"))
        async with log.open_writer() as writer:  # a new writer knows the last one
            with pytest.raises(TransactionIdOutOfOrder):
                await writer.write(LogRecord(1, b"1"))
        async with log.open_reader(to="end") as reader:
            assert [record.payload async for record in reader] == [b"5", b"5 again"]


# --- what a bookie finds in its journal -----------------------------------------------------------


def _used_journal(cluster: Cluster, name: str) -> Path:
    """The journal file that entries are in."""
    files = sorted((cluster.directory / name / "journal").glob("journal-*"))
    return max(files, key=lambda file: len(file.read_bytes().rstrip(b"\0")))


def _check_after_damage(
    cluster: Cluster, before: witness.Testimony, payloads: list[bytes], *, tail: bool = False
) -> witness.Testimony:
    """Start the damaged bookie1: it serves, never denies what it had, and nobody misses a byte."""
    cluster.start("bookie1")
    after = witness.ask(cluster.uri, "log", cluster.served["bookie1"].node.address)
    if not tail:
        assert not before.held & after.denied, "it denies what it had acknowledged"
    assert _digest(cluster, "log") == _digest_of(payloads)
    cluster.kill("bookie1")
    assert _digest(cluster, "log") == _digest_of(payloads)  # from the others alone
    said = (cluster.directory / "bookie1.stderr").read_text()
    assert "Traceback" not in said
    return after


def _written(cluster: Cluster) -> tuple[list[bytes], witness.Testimony]:
    payloads = _payloads()
    witness.write(cluster.uri, "log", payloads)
    before = witness.ask(cluster.uri, "log", cluster.served["bookie1"].node.address)
    assert len(before.held) >= ENTRIES
    return payloads, before


def test_a_truncated_journal_is_a_loss_that_the_bookie_admits(cluster: Cluster) -> None:
    """G3, H3, H7: what its checkpoint covers and its file lacks is unknown, not absent."""
    payloads, before = _written(cluster)
    _stop(cluster, "bookie1")
    journal = _used_journal(cluster, "bookie1")
    used = len(journal.read_bytes().rstrip(b"\0"))
    with journal.open("r+b") as file:
        file.truncate(used // 2 // BLOCK * BLOCK)

    after = _check_after_damage(cluster, before, payloads)

    assert before.held & after.unknown, "half of its file is gone, and it says so"


def test_a_torn_last_block_is_cut_and_the_bookie_serves(cluster: Cluster) -> None:
    """G2, H3: a crash tears only what was not synced; that is no damage, and others have the rest."""
    payloads, before = _written(cluster)
    cluster.kill("bookie1")
    journal = _used_journal(cluster, "bookie1")
    used = (len(journal.read_bytes().rstrip(b"\0")) + BLOCK - 1) // BLOCK * BLOCK
    with journal.open("r+b") as file:
        file.truncate(used - BLOCK)

    after = _check_after_damage(cluster, before, payloads, tail=True)

    assert len(before.held - after.held) <= 2, "no more than the block that was cut"


@pytest.mark.parametrize("end", ["clean", "killed"])
def test_a_flipped_byte_in_a_synced_block_is_never_served_nor_denied(
    cluster: Cluster, end: str
) -> None:
    """G2, G3, H3: after the block others follow, so it was durable once."""
    payloads, before = _written(cluster)
    if end == "clean":
        _stop(cluster, "bookie1")
    else:
        cluster.kill("bookie1")
    payload = payloads[ENTRIES // 2]
    files = (cluster.directory / "bookie1" / "journal").glob("journal-*")
    journal = next(file for file in files if payload in file.read_bytes())
    data = bytearray(journal.read_bytes())
    at = data.index(payload) + 500
    data[at] ^= 0x10
    journal.write_bytes(data)

    after = _check_after_damage(cluster, before, payloads)

    assert before.held & after.unknown


# --- whose directory it is ------------------------------------------------------------------------


def _tree(*places: Path) -> dict[str, str]:
    """Every file's digest; a lock file holds only who had it last."""
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for place in places
        for path in sorted(place.rglob("*"))
        if path.is_file() and path.name not in ("LOCK", "lock.mdb")
    }


def _refused(cluster: Cluster, name: str, data: Path) -> str:
    """A bookie that is started with ``data`` ends with 5; the line that says why."""
    quorum = ",".join(
        f"{n.address[0]}:{n.address[1]}" for n in cluster.plan.nodes_of_kind("metadata")
    )
    command = dlog("serve", "bookie", "--name", name, "--data", str(data), "--metadata", quorum)
    done = preloaded.run(command, timeout=60, env=environment())
    assert done.stdout == b""
    return _fails(5, done)


def test_a_directory_that_is_not_its_own_is_refused_and_left_alone(cluster: Cluster) -> None:
    """H6: swapped halves, an older copy, one that is in use; `test_starting.py` has the foreign ones."""
    payloads, _ = _written(cluster)
    here = cluster.directory
    one, two = here / "bookie1", here / "bookie2"

    error = _refused(cluster, "bookie1", one)
    assert "DataDirectoryInUse (2044)" in error

    _stop(
        cluster, "bookie1", "bookie2", "metadata1"
    )  # two are a quorum; a third one's log would grow
    older = here / "older"
    shutil.copytree(one, older)
    for data in (here / "metadata1", older / "journal"):  # another kind's, and a level too deep
        before = _tree(data)
        error = _refused(cluster, "bookie1", data)
        assert "ForeignData (2041)" in error
        assert _tree(data) == before
        assert not (data / "journal").exists()

    cluster.start("metadata1")
    _swap(one / "journal", two / "journal")
    before = _tree(one, two)
    error = _refused(cluster, "bookie1", one)
    assert "ForeignData (2041)" in error
    assert "the index directory belongs to bookie" in error
    assert _tree(one, two) == before
    _swap(one / "journal", two / "journal")

    cluster.start(
        "bookie1", "bookie2"
    )  # each at home again, and bookie1 one start older than the copy
    _stop(cluster, "bookie1")
    before = _tree(older)
    error = _refused(cluster, "bookie1", older)
    assert "ForeignData (2041)" in error
    assert "older copy" in error
    assert _tree(older) == before

    _stop(cluster, "bookie2")
    _swap(one, two)  # whole directories: an id lives in its directory, not in a name or an address
    cluster.start("bookie1", "bookie2")
    assert _digest(cluster, "log") == _digest_of(payloads)
    assert cluster.json("status", codes=(0, 6))["healthy"]


def _swap(one: Path, other: Path) -> None:
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


# --- who knocks -----------------------------------------------------------------------------------


def test_garbage_on_every_port_disturbs_nobody(cluster: Cluster) -> None:
    """G1, G2, H16: strangers are refused in bounded time and memory while a writer works."""
    targets = [cluster.served["metadata1"], cluster.served["bookie1"]]

    trio.run(_knock, cluster, targets)

    assert all(one.process.poll() is None for one in cluster.served.values())
    status = cluster.json("status")
    assert status["healthy"], json.dumps(status["reasons"])


async def _knock(cluster: Cluster, targets: list[Served]) -> None:
    written: list[bytes] = []
    slowest_s = 0.0
    over = False
    written_all = trio.Event()

    async def keep_writing(task_status: trio.TaskStatus[None]) -> None:
        nonlocal slowest_s
        async with log.open_writer() as writer:
            task_status.started()
            while not over:
                payload = b"%d" % len(written)
                began = trio.current_time()
                await writer.write(LogRecord(len(written), payload))
                slowest_s = max(slowest_s, trio.current_time() - began)
                written.append(payload)
                await trio.sleep(0.01)
        written_all.set()

    async def stranger(served: Served, kind: str) -> None:
        try:
            await garbage.refused_after(served.node.address, garbage.KINDS[kind])
        except trio.TooSlowError:
            failures.append(f"{served.node.name} kept {kind}")

    async def idle(served: Served) -> None:
        try:
            await garbage.refused_after(served.node.address, garbage.silence)
        except trio.TooSlowError:
            failures.append(f"{served.node.name} kept a silent connection")

    async def watch_memory() -> None:
        while True:
            for served in targets:
                pid = served.process.pid
                most[pid] = max(most[pid], garbage.anonymous_bytes(pid))
            await trio.sleep(0.2)

    failures: list[str] = []
    async with open_namespace(cluster.uri) as namespace, trio.open_nursery() as nursery:
        log = namespace.open_log("busy")
        await nursery.start(keep_writing)
        await trio.sleep(1.0)  # its journal buffers are there before we look
        first = {one.process.pid: garbage.anonymous_bytes(one.process.pid) for one in targets}
        most = dict(first)
        nursery.start_soon(watch_memory)
        async with trio.open_nursery() as strangers:
            for served in targets:
                for kind in garbage.KINDS:
                    strangers.start_soon(stranger, served, kind)
                for _ in range(garbage.IDLE):
                    strangers.start_soon(idle, served)
        over = True
        await written_all.wait()
        nursery.cancel_scope.cancel()
    assert failures == []
    print(f"{len(written)} writes, the slowest in {slowest_s:.3f} s")
    assert slowest_s < WRITE_S_MAX
    for served in targets:
        grown = most[served.process.pid] - first[served.process.pid]
        print(f"{served.node.name} grew by {grown:,} bytes to {most[served.process.pid]:,}")
        assert grown < MEMORY_GROWTH_MAX, f"{served.node.name} grew by {grown:,} bytes"
    async with (
        open_namespace(cluster.uri) as namespace,
        namespace.open_log("busy").open_reader(to="end") as reader,
    ):
        assert [record.payload async for record in reader] == written
