"""The table of what a record costs by how many logs are written."""

import sys
from pathlib import Path

import pytest

from distributedlog.testing.bench.cases import many_logs
from distributedlog.testing.bench.cases.many_logs import CASES, IDLE_PROGRAM, table

TURN = {
    "p50_ms": 4.0,
    "p99_ms": 16.0,
    "records_per_s": 19_990.0,
    "client_cpu_us": 25.0,
    "bookie_cpu_us": 34.0,
    "idle_cpu_ms_per_s": 2.0,
    "others_cpu_pct": 0.0,
}


def test_medians_of_the_turns_by_case_and_build() -> None:
    turns = [{**TURN, "p99_ms": p99} for p99 in (90.0, 12.0, 16.0)]
    found = {"1,000 at 20,000/s|here": turns, "1,000 at 20,000/s|there": [TURN]}
    lines = table(found, "there").splitlines()

    assert len({line.count("|") for line in lines}) == 1, "as many cells in each line"
    assert lines[2].startswith("| 1,000 at 20,000/s | this | 19,990 | 4.0 / 16.0 | 25.0 | 34.0 |")
    assert " the other " in lines[3]


def test_what_another_build_runs_is_a_program() -> None:
    compile(IDLE_PROGRAM, "idle", "exec")
    assert all(case.count("@") == 1 for case in CASES.split(","))


def test_another_build_and_the_data_are_found_from_any_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are named from where the caller is; what is run starts in a directory of its own."""
    ran: list[tuple[str, Path]] = []

    def one_case(python: str, directory: Path, *_: object) -> dict[str, float]:
        ran.append((python, directory))
        return TURN

    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(many_logs, "one_case", one_case)
    given = ["--cases", "1@5", "--other", "../before/python", "--data", "../data"]
    monkeypatch.setattr(sys, "argv", ["many_logs", *given])

    many_logs.main()

    assert [python for python, _ in ran] == [sys.executable, str(tmp_path / "before" / "python")]
    assert {directory.parent for _, directory in ran} == {tmp_path / "data"}


def test_data_that_cannot_be_anywhere_are_a_fault_of_the_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(sys, "argv", ["many_logs", "--data", str(tmp_path / "file" / "below")])

    with pytest.raises(SystemExit):
        many_logs.main()

    assert "file/below: Not a directory" in capsys.readouterr().err
