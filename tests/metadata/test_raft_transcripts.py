"""Golden transcripts: what the core does in known situations, message by message.

After a meant change of behaviour: ``DLOG_REWRITE=1 pytest tests/metadata/test_raft_transcripts.py``, and
read the difference line by line.
"""

import os
from pathlib import Path

import pytest

from .transcript import run_transcript

SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


def test_the_scenarios_are_there() -> None:
    assert len(SCENARIOS) >= 8


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_core_plays_the_transcript(path: Path) -> None:
    """Each file names its source in its first lines."""
    played = run_transcript(path)
    if os.environ.get("DLOG_REWRITE"):
        path.write_text(played)

    assert played == path.read_text()
