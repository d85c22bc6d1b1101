"""Small file systems of their own kinds, for who may mount; others skip these tests by name."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(path: Path, kind: str, *options: str) -> Iterator[Path]:
    """A fresh file system of ``kind`` at ``path``, until the end of the block."""
    if os.geteuid() != 0:
        pytest.skip(f"mounting {kind} needs root")
    path.mkdir()
    done = subprocess.run(
        ["mount", "-t", kind, *options, "none", str(path)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip(f"{kind} cannot be mounted here: {done.stderr.decode().strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], capture_output=True, check=False)
