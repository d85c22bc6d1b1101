"""Every example runs unchanged, and so do the programs of README.md and docs/start/first-program.md."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from distributedlog.cluster.local.child_processes import environment

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

SAYS = {
    "first_program": r"1\.0\.0\n1\.0\.0 1 b'first'\n",
    "keys_and_headers": (
        r"b'without a key' None \(\)\n"
        r"b'paid' b'1734' \(\(b'trace', b'7f'\), \(b'trace', b'80'\)\)\n"
    ),
    "take_over": r"B is refused: .*writer A.*\nA is fenced: .*\n1\.0\.0 0 b'from A'\n2\.0\.0 1 b'from B'\n",
    "write_and_tail": r"((wrote|read ) \S+ (in )?[\d.]+ ms.*\n){40}",
}
"""What each prints, by its name; an example without a line here fails."""


def _run(file: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(file)],
        capture_output=True,
        timeout=120,
        env=environment(),
        cwd=file.parent,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stderr == b""
    return done.stdout.decode()


@pytest.mark.parametrize("file", EXAMPLES, ids=[file.stem for file in EXAMPLES])
def test_an_example_runs_to_its_end(file: Path) -> None:
    assert re.fullmatch(SAYS[file.stem], _run(file))


def test_the_readmes_first_program_runs_as_it_stands(tmp_path: Path) -> None:
    """Copied out of the page into a file, with nothing around it."""
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    file = tmp_path / "program.py"
    file.write_text(program)

    assert _run(file) == "1.0.0 1 b'first'\n"


def test_each_first_program_runs_unchanged(tmp_path: Path) -> None:
    """Those that start a cluster of their own; blocking, Trio and asyncio print the same."""
    page = (ROOT / "docs/start/first-program.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    programs = [block for block in blocks if "local_cluster" in block]
    printed = []
    for number, program in enumerate(programs):
        file = tmp_path / f"program{number}.py"
        file.write_text(program)
        printed.append(_run(file))

    first = "durable at 1.0.0\n1.0.0 1 b'first'\n"
    assert printed == [first, "1000 records\n", first, first]
