"""The performance gate: the path of the other build, and the interval that decides."""

import sys
from pathlib import Path

import pytest

from distributedlog.testing.bench.compare_builds import (
    GATE,
    LIMIT,
    GateCase,
    compare,
    environment_of,
    table,
)


def test_path_of_other_python_is_absolute_and_stays_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/internals/performance.md names ``../before/.venv/bin/python``; processes start elsewhere."""
    (tmp_path / "here").mkdir()
    (tmp_path / "before").mkdir()
    (tmp_path / "before" / "python").symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path / "here")

    assert environment_of("../before/python", tmp_path) == str(tmp_path / "before" / "python")


@pytest.mark.parametrize("case", GATE, ids=lambda case: case.name)
def test_case_is_slower_only_if_its_whole_interval_is_below_the_limit(case: GateCase) -> None:
    """A steady loss of a tenth fails; the same mean loss with noise that reaches the limit does not."""

    def figures(*ratios: float) -> list[float]:
        return [100 / ratio if case.lower_is_better else 100 * ratio for ratio in ratios]

    other = [100.0] * 5
    steady = compare(case, figures(0.90, 0.91, 0.89, 0.90, 0.90), other)
    noisy = compare(case, figures(0.70, 1.10, 0.85, 1.00, 0.85), other)
    faster = compare(case, figures(1.10, 1.12, 1.09, 1.11, 1.10), other)

    assert steady.is_slower(LIMIT)
    assert not noisy.is_slower(LIMIT)
    assert not faster.is_slower(LIMIT)
    assert faster.ratio == pytest.approx(1.104, abs=0.001)


def test_table_names_the_slower_case() -> None:
    """Each row ends with the result of its case."""
    first, second = GATE[0], GATE[2]

    rows = table({first: ([80.0] * 3, [100.0] * 3), second: ([1.0] * 3, [1.0] * 3)}, LIMIT)

    assert [row.split("|")[-2].strip() for row in rows.splitlines()[2:]] == ["slower", "ok"]
