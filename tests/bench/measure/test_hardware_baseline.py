"""`dlog bench baseline` measures and returns the documented keys."""

from pathlib import Path

import pytest

from distributedlog.testing.bench.measure.hardware_baseline import measure


@pytest.mark.processes
def test_the_floor_has_the_keys_of_the_contract(tmp_path: Path) -> None:
    found = measure(tmp_path, size=512, seconds=0.3)

    assert found["file"]["p50"] > 0
    assert found["replicated"]["p99"] >= found["replicated"]["p50"] > 0
    assert found["framing"]["records_per_s"] > 0
    assert "others_cpu_pct" in found
    assert list(tmp_path.iterdir()) == []  # leaves nothing behind
