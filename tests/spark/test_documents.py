"""The pages on Spark agree with the code, and the tutorial's first program runs."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from distributedlog.cluster.local.child_processes import environment
from distributedlog.spark.doc_tables import with_generated_tables
from tests.spark.conftest import plain, why_not

ROOT = Path(__file__).resolve().parent.parent.parent
OPTIONS = ROOT / "docs" / "reference" / "spark-options.md"
TUTORIAL = ROOT / "docs" / "start" / "spark.md"


def test_the_option_tables_are_those_of_the_code() -> None:
    """When this fails: ``python -m distributedlog.spark.doc_tables docs/reference/spark-options.md``."""
    text = OPTIONS.read_text()

    assert with_generated_tables(text) == text


def test_no_document_names_an_install_that_does_not_resolve() -> None:
    """The package is on no index: it is installed from a checkout, with the extras that it has."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    commands = (ROOT / "distributedlog" / "cli").rglob("*.py")
    texts = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *commands]
    named = {
        (path.name, what)
        for path in texts
        for what in re.findall(r"pip install (?:-e )?'([^']*)'", path.read_text())
    }

    assert {what for _, what in named} >= {".[spark]"}
    for path, what in named:
        found = re.fullmatch(r"\.\[([\w,-]+)\]", what)
        assert found, f"{path}: {what}"
        assert set(found[1].split(",")) <= set(extras), f"{path}: {what}"


def test_importing_it_loads_neither_servers_nor_spark() -> None:
    """Executors need no lmdb; the module that Spark looks for must import fast."""
    program = (
        "import sys, distributedlog.spark, distributedlog.spark.client.spark_client, "
        "distributedlog.spark.read.task_entries\n"
        "print([name for name in ('lmdb', 'pyspark', 'click') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=60,
        check=True,
    )

    assert done.stdout.strip() == "[]"


@pytest.mark.processes
@pytest.mark.spark
def test_the_first_program_runs_as_it_stands(uri: str, tmp_path: Path) -> None:
    """By the path of an interpreter whose environment is not activated: PATH has another ``python3``."""
    if why_not():
        pytest.skip(why_not())
    found = re.search(r"```python\n(.*?)```", TUTORIAL.read_text(), re.DOTALL)
    assert found is not None
    program = tmp_path / "job.py"
    program.write_text(found[1])
    (tmp_path / "python3").write_text("#!/bin/sh\necho this is not the job's python >&2\nexit 1\n")
    (tmp_path / "python3").chmod(0o755)
    kept = {name: value for name, value in environment().items() if "PYSPARK" not in name}
    path = os.pathsep.join([str(tmp_path), kept["PATH"]])

    done = subprocess.run(
        [sys.executable, str(program)],
        capture_output=True,
        text=True,
        env={**kept, "PATH": path, "DLOG_URI": uri, "SPARK_LOCAL_IP": "127.0.0.1"},
        cwd=tmp_path,
        timeout=300,
    )

    assert done.returncode == 0, done.stderr[-4000:]
    assert "created" in done.stdout
    written, copied = plain(uri, "demo"), plain(uri, "copy")
    assert [row[5] for row in written] == [b"created", b"paid"]
    assert [row[4:] for row in copied] == [row[4:] for row in written]
