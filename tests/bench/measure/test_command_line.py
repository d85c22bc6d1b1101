"""Programs of the bench that somebody runs by hand: an end is one line, and help fits the terminal."""

import ast
import os
from pathlib import Path

import pytest

from distributedlog.runtime.interfaces.errors import InvalidRequest, NoSuchLedger
from distributedlog.testing.bench.measure.bench_plan import FAILED, INTERRUPTED, run, wrapped
from distributedlog.testing.bench.measure.hardware_baseline import nodes
from tests.parts import files_of

CHILDREN = {"baseline_node.py", "interference.py", "tail.py"}
"""What they run as `python -m` is started by others."""


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), INTERRUPTED, "interrupted\n"),
        (
            BaseExceptionGroup("", [NoSuchLedger("x"), ExceptionGroup("", [OSError()])]),
            FAILED,
            "error: NoSuchLedger (2010): x\n",
        ),
        (
            BaseExceptionGroup("", [OSError(), BaseExceptionGroup("", [KeyboardInterrupt()])]),
            INTERRUPTED,
            "interrupted\n",
        ),
        (InvalidRequest("no such file"), FAILED, "error: InvalidRequest (403): no such file\n"),
    ],
)
def test_an_end_is_one_line(
    error: BaseException, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C gave three screens: a traceback of the bench and of each process that it had started."""

    def main() -> None:
        raise error

    with pytest.raises(SystemExit) as ended:
        run(main)

    assert ended.value.code == code
    assert capsys.readouterr().err == said


def test_a_defect_keeps_its_traceback() -> None:
    def main() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(main)


def test_every_program_ends_so() -> None:
    for path in files_of("bench"):
        text = path.read_text()
        if 'if __name__ == "__main__":' in text and path.name not in CHILDREN:
            last = ast.parse(text).body[-1]
            assert isinstance(last, ast.If)
            assert ast.unparse(last.body[0]) == "run(main)", path


def test_what_is_to_be_copied_stays_as_it_is() -> None:
    """Of the help of four programs the commands had become part of a sentence."""
    text = (
        "One line that is\ntoo long.\n\n    python -m x --data DIR\n    python -m x\n\nThe end.\n"
    )

    assert wrapped(text, 12) == (
        "One line\nthat is too\nlong.\n\n    python -m x --data DIR\n    python -m x\n\nThe end."
    )


@pytest.mark.processes
def test_an_interruption_of_the_terminal_is_for_the_bench_alone(tmp_path: Path) -> None:
    """The nodes of the floor end with their connections; interrupted as well they said so, each at length."""
    with nodes(tmp_path, "message", 64):
        children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
        nodes_of_it = [
            pid
            for pid in map(int, children)
            if b"baseline_node" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        assert len(nodes_of_it) == 3
        assert os.getpgid(0) not in map(os.getpgid, nodes_of_it)
