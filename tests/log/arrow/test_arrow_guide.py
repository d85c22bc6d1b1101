"""The programs of docs/guides/arrow.md run unchanged, and a program ends although its reader is open."""

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from distributedlog.blocking import local_cluster, open_namespace
from distributedlog.cluster.local.child_processes import environment
from tests.extras import INSTALL_ARROW

pytestmark = pytest.mark.extra
pytest.importorskip("pyarrow", reason=INSTALL_ARROW)

PAGE = (Path(__file__).resolve().parents[3] / "docs/guides/arrow.md").read_text()
PROGRAMS = {
    re.findall(r"^import (\w+)$", text, re.M)[-1]: text
    for text in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
}
"""The programs, by the package that they query with."""
CUSTOMERS = ("ann", "bob", "eve")
RECORDS = 3000


@pytest.fixture(scope="module")
def uri() -> Iterator[str]:
    with local_cluster(memory=True, metadata_nodes=1) as cluster:
        with (
            open_namespace(cluster.uri) as namespace,
            namespace.open_log("orders").open_writer() as w,
        ):
            for number in range(RECORDS):
                order = {"customer": CUSTOMERS[number % 3], "amount": number}
                w.submit(json.dumps(order).encode())
        yield cluster.uri


@pytest.mark.parametrize("package", ["duckdb", "polars", "pandas"])
def test_program_of_the_guide_sums_the_orders(
    uri: str, package: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install '.[engines]'")
    totals = [(name, sum(range(at, RECORDS, 3))) for at, name in enumerate(CUSTOMERS)]
    variables: dict[str, Any] = {"uri": uri}

    exec(PROGRAMS[package], variables)

    printed = dict(totals) if package == "pandas" else totals
    assert capsys.readouterr().out == f"{printed}\n"


def test_program_ends_while_its_reader_is_open(uri: str) -> None:
    program = f"""
from distributedlog.blocking import open_namespace
namespace = open_namespace({uri!r}).__enter__()
log = namespace.open_log("orders", config={{"read_ahead_bytes": 1, "read_bytes": 1}})
reader = log.to_arrow(batch_bytes_max=1)
print(reader.read_next_batch().num_rows > 0)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(),
        check=False,
    )

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "True\n", "")
