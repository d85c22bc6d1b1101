"""`dlog check`: check whether a machine is fit for a node."""

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
from ..framework.output import State, emit, prose, size, table
from ..framework.progress import show_progress

PASS, WARN, FAIL = "pass", "warn", "FAIL"
MIB = 1024 * 1024
SYNC_P99_WARN_S, SYNC_P99_FAIL_S = 0.02, 0.5
"""Limits of the 99th percentile of a sync, in seconds.

Acknowledgements wait for syncs, so slow syncs slow down all writes. A bookie with very slow syncs is
considered failed.
"""
FREE_WARN_BYTES, FREE_FAIL_BYTES = 4096 * MIB, 512 * MIB
DESCRIPTORS_MIN = 4096
IN_MEMORY = ("tmpfs", "ramfs")
SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class MachineCheckResult:
    """The result of one check."""

    what: str
    verdict: str
    found: str
    wanted: str
    then: str = ""
    """The remedy; "" if the check passed."""


@click.command(
    cls=CliCommand,
    examples="""
    dlog check                        check Python, descriptors, the operating system
    dlog check /var/lib/dlog          also check the disk of this directory: syncs, free space
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
    """Check whether this machine is fit for a node, and DIR for its data.

    The exit code is 6 if a check fails. With DIR, the command writes to a temporary directory there for two
    seconds, and removes it.
    """
    results = [check_python(), check_system(), check_descriptors()]
    if directory is not None:
        results += [check_free_space(directory), check_file_system(directory)]
        with show_progress(settings, lambda s: f"measuring syncs for {SECONDS:g} s: {s:.0f} s"):
            results.append(check_syncs(directory, SECONDS))
    for result in results if settings.json else ():
        emit(asdict(result))
    if not settings.json:
        table(
            ("", "check", "required", "found"),
            [
                [State(result.verdict), result.what, result.wanted, result.found]
                for result in results
            ],
        )
        for result in results:
            if result.then:
                prose(f"{result.what}: {result.then}")
    if any(result.verdict == FAIL for result in results):
        raise ExitWithCode(NO)


def check_python() -> MachineCheckResult:
    """Check the version and the build of the interpreter."""
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
    """Check the operating system. Nodes run on Linux only."""
    system_name = platform.system()
    if system_name == "Linux":
        return MachineCheckResult("system", PASS, f"{system_name} {platform.release()}", "Linux")
    remedy = "nodes require Linux; programs and dlog itself also run here"
    return MachineCheckResult("system", FAIL, system_name, "Linux", remedy)


def check_descriptors() -> MachineCheckResult:
    """Check how many files and connections one process can open."""
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
    """Check the free space of the disk."""
    free = shutil.disk_usage(directory).free
    verdict = FAIL if free < FREE_FAIL_BYTES else WARN if free < FREE_WARN_BYTES else PASS
    remedy = "" if verdict == PASS else "a bookie becomes read-only before its disk is full"
    return MachineCheckResult(
        "room", verdict, size(free), f"{size(FREE_WARN_BYTES)} at least", remedy
    )


def check_file_system(
    directory: Path, mounts: Path = Path("/proc/self/mounts")
) -> MachineCheckResult:
    """Check by its type whether a file system keeps data after a power failure."""
    wanted = "a file system on a disk"
    try:
        file_system = _file_system(directory.resolve(), mounts.read_text(errors="replace"))
    except OSError:
        file_system = ""
    if not file_system:
        return MachineCheckResult(
            "file system", WARN, "unknown", wanted, "make sure that it is on a disk"
        )
    if file_system in IN_MEMORY:
        remedy = "all data is lost when the machine restarts"
        return MachineCheckResult("file system", FAIL, file_system, wanted, remedy)
    return MachineCheckResult("file system", PASS, file_system, wanted)


def check_syncs(directory: Path, seconds: float) -> MachineCheckResult:
    """Measure sequential appends of 4 KiB, each with a sync."""
    from ...testing.bench.measure.hardware_baseline import file_baseline

    wanted = f"p99 below {SYNC_P99_WARN_S * 1000:g} ms"
    try:
        with tempfile.TemporaryDirectory(prefix="dlog-check-", dir=directory) as scratch_directory:
            times = file_baseline(Path(scratch_directory), 4096, seconds)
    except OSError as error:
        return MachineCheckResult(
            "syncs", FAIL, os.strerror(error.errno or 0), wanted, f"{directory}: {error}"
        )
    p50, p99 = times.percentile_s(50), times.percentile_s(99)
    verdict = FAIL if p99 >= SYNC_P99_FAIL_S else WARN if p99 >= SYNC_P99_WARN_S else PASS
    remedy = "" if verdict == PASS else "every acknowledgement waits for a sync: use another disk"
    return MachineCheckResult(
        "syncs", verdict, f"p50 {p50 * 1000:.2f}, p99 {p99 * 1000:.2f} ms", wanted, remedy
    )


def _file_system(directory: Path, mounts: str) -> str:
    """Return the type of the deepest mount above a directory. Of several at one path the last applies."""
    best_depth, file_system = -1, ""
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        mount_point = Path(fields[1].encode().decode("unicode_escape"))  # a space is written \\040
        if directory.is_relative_to(mount_point) and len(mount_point.parts) >= best_depth:
            best_depth, file_system = len(mount_point.parts), fields[2]
    return file_system
