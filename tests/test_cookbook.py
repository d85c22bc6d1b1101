"""Each program of docs/guides/cookbook.md runs as it stands, all of them on one cluster."""

import json
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from distributedlog import LogEmpty
from distributedlog.blocking import local_cluster, open_namespace
from distributedlog.cluster.local.child_processes import environment

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parent.parent
PROGRAMS = sorted((ROOT / "examples/cookbook").glob("*.py"))

SAYS = {
    "exactly_once": r"500 records, each once, after [1-9]\d* deaths\n",
    "follow_changes": r"killed after 30 of 60 changes\nthe copy is complete; 6 changes were repeated\n",
    "leader_election": (
        r"ann: I lead\ndid 'start' in term 1\nbob: ann leads\nbob: I lead\ndid 'stop' in term 2\n"
        r"refused 'go on' of term 1, the current term is 2\nann: I no longer lead\n"
    ),
    "state_machine": (
        r"\['', 'ann', 100\] done\n\['ann', 'bob', 30\] done\n\['bob', 'eve', 50\] bob has too little\n"
        r"\['ann', 'eve', 5\] done\n(5 \{'ann': 66, 'bob': 30, 'eve': 4\}\n){3}"
    ),
    "work_queue": r"60 jobs are done, although one of 3 workers was killed\n",
    "write_ahead": (
        r"started again: 10 keys, 100 changes replayed\nstarted again: 10 keys, 1 changes replayed\n"
    ),
}
"""What each prints, by its name; a program without a line here fails."""


@pytest.fixture(scope="module")
def uri() -> Iterator[str]:
    with local_cluster(memory=True, metadata_nodes=1) as cluster:
        yield cluster.uri


@pytest.mark.parametrize("file", PROGRAMS, ids=[file.stem for file in PROGRAMS])
def test_a_program_of_the_cookbook_does_what_it_says(uri: str, file: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(file), uri],
        capture_output=True,
        timeout=120,
        env=environment(),
        cwd=file.parent,
        check=False,
    )

    assert done.stderr == b""
    assert done.returncode == 0
    assert re.fullmatch(SAYS[file.stem], done.stdout.decode())


def test_the_cookbook_tells_of_each_program() -> None:
    text = (ROOT / "docs/guides/cookbook.md").read_text()

    assert [
        file.name for file in PROGRAMS if f"(../../examples/cookbook/{file.name})" not in text
    ] == []


def test_a_store_that_was_paused_in_a_checkpoint_takes_nothing_from_the_next_one(
    uri: str, tmp_path: Path
) -> None:
    """The old process wakes in the middle of its checkpoint, when another one has gone on."""
    store = program("write_ahead")["KeyValueStore"]
    with open_namespace(uri) as namespace:
        log, file = namespace.open_log("paused"), tmp_path / "checkpoint"
        paused = store(log, file)
        paused.put("before", "1")
        current = store(log, file)
        current.put("after", "2")

        paused.checkpoint()

        current.die()
        started = store(log, file)
        assert started.values == {"before": "1", "after": "2"}
        started.die()


def test_a_replica_that_begins_while_the_first_snapshot_is_made_misses_no_command(uri: str) -> None:
    """It finds no snapshot; then there is one, and what comes before it is truncated."""
    replica = program("state_machine")["StateMachine"]
    with open_namespace(uri) as namespace:
        commands, snapshots = namespace.open_log("steps"), namespace.open_log("steps/snapshots")
        with commands.open_writer() as writer, snapshots.open_writer() as snapshot_writer:
            leader = replica(commands, snapshots)
            leader.apply_up_to(writer.write(json.dumps(["", "ann", 100]).encode()))

            class Slow:
                looked = False

                def last_record(self) -> Any:
                    if self.looked:
                        return snapshots.last_record()
                    self.looked = True
                    leader.store(snapshot_writer)
                    snapshot_writer.commit()
                    raise LogEmpty("there was none a moment ago")

            late = replica(commands, Slow())
            said = late.apply_up_to(writer.write(json.dumps(["ann", "bob", 30]).encode()))

            assert (said, late.state.money) == ("done", {"ann": 70, "bob": 30})
            late.close()
            leader.close()


def program(name: str) -> dict[str, Any]:
    """What a program of the cookbook defines, by name."""
    return runpy.run_path(str(ROOT / f"examples/cookbook/{name}.py"))
