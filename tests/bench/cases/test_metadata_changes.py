"""The bench of the metadata quorum runs, and says what its docstring says."""

from pathlib import Path

import pytest
import trio

from distributedlog.testing.bench.cases.metadata_changes import CASES, measure, medians


@pytest.mark.processes
def test_the_bench_of_the_metadata_counts_changes_and_cpu(tmp_path: Path) -> None:
    found = trio.run(measure, tmp_path, 0.2)

    assert found.keys() == CASES.keys()
    for figures in medians([found]).values():
        assert figures["transactions_per_s"] > 0
        assert figures["cpu_us"] > 0
        assert figures["p99_ms"] >= figures["p50_ms"] > 0
    assert list(tmp_path.iterdir()) == []  # leaves nothing behind
