"""Real processes: a bookie whose journal went denies nothing, and a takeover waits for the one that knows."""

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from distributedlog import open_namespace
from distributedlog.cluster.coordination.journal_sync_point import known_sync_point
from distributedlog.ledger.model import ledger_keys as keys
from distributedlog.ledger.model.bookie_registration import BookieRegistration
from distributedlog.ledger.placement.bookie_pool import BookiePool
from distributedlog.metadata.model.interface import prefix_end
from distributedlog.runtime.declarations.health_conditions import Code
from tests.cluster.story import Cluster
from tests.conditions import codes_of

pytestmark = pytest.mark.processes

LOG = "kept"
RECORDS = 10
NOTED_S = 30.0
"""A renewal comes every two seconds."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Three metadata nodes and three bookies."""
    with Cluster.planned(tmp_path, bookies=3) as made:
        made.start()
        yield made


@pytest.mark.parametrize("damage", ["emptied", "an older copy of the same start"])
def test_what_two_bookies_acknowledged_survives_the_loss_of_ones_journal(
    cluster: Cluster, tmp_path: Path, damage: str
) -> None:
    """G3: ten records on b1 and b2 alone, all killed, b1's journal gone, b2 away: no takeover closes without
    b2. When b2 is back, all is there, and b1 heals.
    """
    assert cluster.run("log", "create", LOG).returncode == 0
    writer = cluster.popen("log", "write", LOG, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert writer.stdin is not None
    writer.stdin.write(b"first\n")
    writer.stdin.flush()
    _wait_for_lines(cluster, 1)
    copy = tmp_path / "copy"
    if damage != "emptied":
        _copy(cluster.directory / "bookie1", copy)
    cluster.pause("bookie3")
    lines = [b"line %d" % n for n in range(RECORDS)]
    writer.stdin.write(b"\n".join(lines) + b"\n")
    writer.stdin.flush()
    _wait_for_lines(cluster, 1 + RECORDS)
    if damage != "emptied":  # else nobody can know: docs/concepts/guarantees.md
        _wait_until_noted(cluster, "bookie1")
    writer.kill()
    writer.wait()
    writer.stdin.close()
    cluster.kill()

    if damage == "emptied":
        for file in (cluster.directory / "bookie1").rglob("journal-*"):
            file.write_bytes(b"")
    else:
        shutil.rmtree(cluster.directory / "bookie1")
        _copy(copy, cluster.directory / "bookie1")
    names = [node.name for node in cluster.plan.nodes if node.name != "bookie2"]
    cluster.start(*names)
    takeover = ("log", "write", LOG, "--takeover", "--timeout", "10")
    without = cluster.run(*takeover, input=b"too early\n")
    status = cluster.json("status", codes=(0, 6))
    cluster.start("bookie2")
    after = cluster.run("log", "write", LOG, "--takeover", "--timeout", "60", input=b"last\n")

    assert without.returncode != 0, "a takeover closed the log without the bookie that knows"
    assert b"within 10 s" in without.stderr, "the command's own time ends it"
    assert Code.LIMBO in codes_of(status["conditions"]), status["reasons"]
    assert after.returncode == 0, after.stderr
    assert _lines(cluster) == [b"first", *lines, b"last"]
    if damage == "emptied":  # it looks again every 20 s at the latest
        healthy = cluster.json("status", "--wait", "--timeout", "110", codes=(0, 6))
        assert healthy["healthy"], healthy["reasons"]


def _lines(cluster: Cluster) -> list[bytes]:
    read = cluster.run("log", "read", LOG)
    assert read.returncode == 0, read.stderr
    return list(read.stdout.splitlines())


def _wait_for_lines(cluster: Cluster, wanted: int) -> None:
    """A line that is read was acknowledged by a quorum."""
    end = time.monotonic() + 60
    while len(_lines(cluster)) < wanted:
        assert time.monotonic() < end, f"{LOG} did not reach {wanted} lines"


def _copy(source: Path, target: Path) -> None:
    """As a backup does, holes kept: most of a journal's file is room that was made ahead."""
    subprocess.run(["cp", "-a", "--sparse=always", str(source), str(target)], check=True)


def _wait_until_noted(cluster: Cluster, name: str) -> None:
    """Until the cluster knows that all was synced that this bookie has synced by now."""
    address = next(node.address for node in cluster.plan.nodes if node.name == name)

    async def wait() -> None:
        async with open_namespace(cluster.uri) as namespace:
            start, end = keys.BOOKIE_PREFIX, prefix_end(keys.BOOKIE_PREFIX)
            page = await namespace.metadata.range(start, end)
            (found,) = (
                bookie
                for item in page.items
                if (bookie := BookieRegistration.decode(item.key, item.value)).addresses[""]
                == address
            )
            pool: BookiePool = namespace.ledgers.pool  # type: ignore[attr-defined]
            client = await pool.connected(found.id, 10.0)
            synced = int(str((await client.info(10.0))["sequence"])) - 1
            with trio.fail_after(NOTED_S):  # another process's doing: there is no event to wait for
                while (await known_sync_point(namespace.metadata, found.id))[0] < synced:  # noqa: ASYNC110
                    await trio.sleep(0.1)

    trio.run(wait)
