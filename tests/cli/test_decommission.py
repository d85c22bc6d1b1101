"""A bookie is drained while the cluster serves, and every record is still there (processes)."""

import json
from collections.abc import Iterator

import pytest

from tests.cli.live import Cluster, running

pytestmark = pytest.mark.processes


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with running(bookies=4) as found:
        yield found


def test_a_bookie_is_drained_and_nothing_is_missing(cluster: Cluster) -> None:
    run = cluster.ok
    lines = b"".join(b"%d\n" % n for n in range(1000))
    for name in ("one", "two", "three"):  # of four bookies each log is on three
        run("log", "write", name, "--create", stdin=lines)
    bookies = [json.loads(line) for line in run("bookies", "--json").splitlines()]
    full = max(bookies, key=lambda one: int(one["ledgers"]))

    left = json.loads(
        run("decommission", full["label"], "--wait", "--json", "--timeout", "50").splitlines()[-1]
    )

    bookies = [json.loads(line) for line in run("bookies", "--json").splitlines()]
    assert [one["state"] for one in bookies if one["id"] == full["id"]] == ["leaving"]
    assert all(one["ledgers_missing"] == 0 for one in bookies)
    assert left["drained"]
    assert left["running"]
    assert left["bookie"] == full["id"]
    assert run("under-replicated") == b"every ledger has all its copies\n"
    for name in ("one", "two", "three"):
        assert run("log", "read", name) == lines
    run("decommission", full["id"], "--cancel")
