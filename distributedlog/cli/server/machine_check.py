"""`dlog check`: is this machine fit for a node?"""

import os
import platform
import shutil
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from ..framework.errors import NO, ExitWithCode
from ..framework.options import CliCommand, Settings, without_cluster
from ..framework.output import emit, prose, size, table

PASS, WARN, FAIL = "pass", "warn", "FAIL"
MIB = 1024 * 1024
SYNC_P99_WARN_S, SYNC_P99_FAIL_S = 0.02, 0.5
"""Acknowledgements wait for syncs: slow ones are everybody's latency, very slow ones are taken for dead."""
FREE_WARN_BYTES, FREE_FAIL_BYTES = 4096 * MIB, 512 * MIB
DESCRIPTORS_MIN = 4096
IN_MEMORY = ("tmpfs", "ramfs")
SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class MachineCheckResult:
    """One thing that was looked at."""

    what: str
    verdict: str
    found: str
    wanted: str
    then: str = ""
    """What to do; "" where all is well."""


@click.command(
    cls=CliCommand,
    examples="""
    dlog check                        Python, descriptors, the system
    dlog check /var/lib/dlog          and the disk there: its syncs, its room
    """,
)
@click.argument(
    "directory",
    required=False,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="[DIR]",
)
@without_cluster()
def command(settings: Settings, directory: Path | None) -> None:
    """Is this machine fit for a node, and DIR for its data? Exit code 6 where something fails.

    With DIR it writes there for two seconds, in a directory of its own that it removes.
    """
    results = [check_python(), check_system(), check_descriptors()]
    if directory is not None:
        results += [
            check_free_space(directory),
            check_file_system(directory),
            check_syncs(directory, SECONDS),
        ]
    for result in results if settings.json else ():
        emit(asdict(result))
    if not settings.json:
        table(
            ("", "what", "wanted", "found"),
            [[result.verdict, result.what, result.wanted, result.found] for result in results],
        )
        for result in results:
            if result.then:
                prose(f"{result.what}: {result.then}")
    if any(result.verdict == FAIL for result in results):
        raise ExitWithCode(NO)


def check_python() -> MachineCheckResult:
    """The interpreter, and how it was built."""
    from ...testing.bench.measure.interpreter_info import this_build

    build = this_build()
    advice = build.advice()
    return MachineCheckResult(
        "python",
        WARN if advice else PASS,
        build.describe(),
        "3.11 or newer, with PGO",
        advice or "",
    )


def check_system() -> MachineCheckResult:
    """Nodes run on Linux."""
    system_name = platform.system()
    if system_name == "Linux":
        return MachineCheckResult("system", PASS, f"{system_name} {platform.release()}", "Linux")
    remedy = "nodes need Linux; programs and dlog itself run here too"
    return MachineCheckResult("system", FAIL, system_name, "Linux", remedy)


def check_descriptors() -> MachineCheckResult:
    """Files and connections that one process may have."""
    from ...runtime.process.descriptor_limit import limit, raise_limit

    count = raise_limit() if sys.platform == "linux" else limit()
    return MachineCheckResult(
        "descriptors",
        PASS if count >= DESCRIPTORS_MIN else WARN,
        f"{count:,}",
        f"{DESCRIPTORS_MIN:,} at least",
        "" if count >= DESCRIPTORS_MIN else "raise `ulimit -Hn`, or LimitNOFILE in the unit",
    )


def check_free_space(directory: Path) -> MachineCheckResult:
    """Free bytes."""
    free = shutil.disk_usage(directory).free
    verdict = FAIL if free < FREE_FAIL_BYTES else WARN if free < FREE_WARN_BYTES else PASS
    remedy = "" if verdict == PASS else "a bookie takes no entries any more before its disk is full"
    return MachineCheckResult(
        "room", verdict, size(free), f"{size(FREE_WARN_BYTES)} at least", remedy
    )


def check_file_system(
    directory: Path, mounts: Path = Path("/proc/self/mounts")
) -> MachineCheckResult:
    """What the file system keeps over a power cut, as far as its name tells."""
    wanted = "a file system on a disk"
    try:
        file_system = _file_system(directory.resolve(), mounts.read_text(errors="replace"))
    except OSError:
        file_system = ""
    if not file_system:
        return MachineCheckResult(
            "file system", WARN, "unknown", wanted, "see to it that it is on a disk"
        )
    if file_system in IN_MEMORY:
        remedy = "nothing is kept here over a start of the machine"
        return MachineCheckResult("file system", FAIL, file_system, wanted, remedy)
    return MachineCheckResult("file system", PASS, file_system, wanted)


def check_syncs(directory: Path, seconds: float) -> MachineCheckResult:
    """4 KiB appended and synced, one after the other."""
    from ...testing.bench.measure.hardware_baseline import file_floor

    wanted = f"p99 below {SYNC_P99_WARN_S * 1000:g} ms"
    try:
        with tempfile.TemporaryDirectory(prefix="dlog-check-", dir=directory) as scratch_directory:
            times = file_floor(Path(scratch_directory), 4096, seconds)
    except OSError as error:
        return MachineCheckResult(
            "syncs", FAIL, os.strerror(error.errno or 0), wanted, f"{directory}: {error}"
        )
    p50, p99 = times.percentile_s(50), times.percentile_s(99)
    verdict = FAIL if p99 >= SYNC_P99_FAIL_S else WARN if p99 >= SYNC_P99_WARN_S else PASS
    remedy = "" if verdict == PASS else "every acknowledgement waits for a sync: take another disk"
    return MachineCheckResult(
        "syncs", verdict, f"p50 {p50 * 1000:.2f}, p99 {p99 * 1000:.2f} ms", wanted, remedy
    )


def _file_system(directory: Path, mounts: str) -> str:
    """The type of the deepest mount above a directory; of several at one place the last."""
    best_depth, file_system = -1, ""
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        mount_point = Path(fields[1].encode().decode("unicode_escape"))  # a blank is \\040 there
        if directory.is_relative_to(mount_point) and len(mount_point.parts) >= best_depth:
            best_depth, file_system = len(mount_point.parts), fields[2]
    return file_system
