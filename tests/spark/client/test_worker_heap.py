"""What a process of Spark's leaves out of its collections, and that a program leaves out nothing."""

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from distributedlog.spark.client import worker_heap as heap

AS_DAEMON = """
import gc, sys
from distributedlog.spark.client import worker_heap as heap
first = [gc.get_freeze_count()]
for with_client in (False, False, True, False, True):
    heap.freeze_worker_heap(with_client=with_client)
    first.append(gc.get_freeze_count())
    some = [[] for _ in range(1_000)]  # what is loaded, or made, after that
    keep = globals().setdefault("kept", [])
    keep.append(some)
print(*first)
"""


def test_a_process_of_sparks_daemon_freezes_once_and_once_more_with_a_client(
    tmp_path: Path,
) -> None:
    """45 ms of collection a call of the driver's, of the daemon's own: else after each of them."""
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").touch()
    (tmp_path / "pyspark" / "daemon.py").write_text(AS_DAEMON)
    command = [sys.executable, "-c", "import runpy, sys; sys.path.insert(0, sys.argv.pop());"]
    command[-1] += "runpy.run_module('pyspark.daemon', run_name='__main__', alter_sys=True)"
    said = subprocess.run(
        [*command, str(tmp_path)], capture_output=True, text=True, check=True, timeout=60
    )

    before, first, again, with_client, later, last = map(int, said.stdout.split())

    assert before < first == again
    assert with_client >= again + 2_000
    assert with_client == later == last


def test_a_program_is_never_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it drops afterwards would never be looked at again."""
    monkeypatch.setattr(gc, "freeze", lambda: pytest.fail("frozen"))

    heap.freeze_worker_heap(with_client=True)
