"""A bookie is drained while the cluster serves, and every record is still there (processes)."""

import json
import time
from collections.abc import Iterator

import pytest

from tests.cli.live import Cluster, running

pytestmark = pytest.mark.processes


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with running(bookies=4) as found:
        yield found


def _names(cluster: Cluster, log: str) -> set[str]:
    """The bookies of the newest ledger of a log; none where there is none yet."""
    done = cluster.run("log", "show", log, "--json")
    segments = json.loads(done.stdout)["segments"] if done.returncode == 0 else []
    return (
        {one for part in segments[-1]["ensembles"] for one in part["bookies"]}
        if segments
        else set()
    )


def test_a_bookie_is_drained_and_nothing_is_missing(cluster: Cluster) -> None:
    run = cluster.ok
    lines = b"".join(b"%d\n" % n for n in range(1000))
    for name in ("one", "two", "three"):  # of four bookies each log is on three
        run("log", "write", name, "--create", stdin=lines)
    idle = cluster.start("log", "write", "idle", "--create")  # a writer that is open, and rests
    assert idle.stdin is not None
    idle.stdin.write(b"first\n")
    idle.stdin.flush()
    while not (on := _names(cluster, "idle")):
        time.sleep(0.1)
    bookies = [json.loads(line) for line in run("bookies", "--json").splitlines()]
    full = max((one for one in bookies if one["id"] in on), key=lambda one: int(one["ledgers"]))

    left = json.loads(
        run("decommission", full["label"], "--wait", "--json", "--timeout", "50").splitlines()[-1]
    )

    bookies = [json.loads(line) for line in run("bookies", "--json").splitlines()]
    [drained] = [one for one in bookies if one["id"] == full["id"]]
    assert (drained["state"], drained["ledgers"]) == ("draining", 0), "as decommission prints"
    assert all(one["ledgers_missing"] == 0 for one in bookies)
    assert left["drained"]
    assert left["running"]
    assert left["bookie"] == full["id"]
    assert run("under-replicated") == b"every ledger has all its copies\n"
    status = json.loads(run("status", "--json"))
    assert status["healthy"], status["conditions"]
    assert "bookie_drained" in [one["code"] for one in status["conditions"]]
    for name in ("one", "two", "three"):
        assert run("log", "read", name) == lines
    assert full["id"] not in _names(cluster, "idle")
    idle.communicate(b"last\n", timeout=60)
    assert idle.returncode == 0, "the idle writer rolled off it, and was not disturbed"
    assert run("log", "read", "idle") == b"first\nlast\n"
    assert b"findings: none" in run("audit")
    ledger = json.loads(run("ledger", "list", "--json").splitlines()[0])
    shown = json.loads(run("ledger", "show", str(ledger["ledger"]), "--json"))
    assert {one["report"] for one in shown["bookies"]} == {"has all required entries"}
    assert shown["last_entry"] == ledger["entries"] - 1
    entry = json.loads(run("ledger", "read", str(ledger["ledger"]), "--json").splitlines()[0])
    assert entry["entry"] == 0
    # What is asked for by hand ends at once where nothing is missing, and says so.
    for what in ("--all", "one"):
        found = json.loads(run("repair", what, "--json"))
        assert (found["left"], found["copied_entries"]) == ([], 0), what
        assert found["full"] > 0
    assert "no bookie is called b77" in cluster.fails(3, "decommission", "b77")
    lost = ("--first", "0", "--last", "0", "--reason", "none", "--force")
    said = cluster.fails(2, "ledger", "accept-loss", str(ledger["ledger"]), *lost)
    assert "they are not lost" in said
    run("decommission", full["id"], "--cancel")
