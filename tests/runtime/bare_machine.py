"""Run a program as a container may: no writable directory but one, no HOME, a user without an entry."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

USER = 54_321
"""A number that no list of users has."""


def bare(writable: Path, command: Sequence[str]) -> list[str]:
    """The command line that runs ``command`` so; ``writable`` is the only directory that takes files."""
    if os.geteuid() != 0:
        pytest.skip("a private mount namespace needs root")
    inside = (
        f"mount -t tmpfs none {writable} && chmod 777 {writable} && mount -o remount,ro,bind /"
        " && mount -t tmpfs -o ro none /dev/shm && cd /"
        ' && exec setpriv --reuid "$0" --regid 0 --clear-groups --inh-caps=+dac_read_search'
        ' --ambient-caps=+dac_read_search env -i PATH="$PATH" "$@"'
    )
    probe = subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip(f"no private mount namespace: {probe.stderr.decode().strip()}")
    return ["unshare", "-m", "sh", "-c", inside, str(USER), *command]
