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
class Check:
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
    found = [python(), system(), descriptors()]
    if directory is not None:
        found += [room(directory), kind(directory), syncs(directory, SECONDS)]
    for one in found if settings.json else ():
        emit(asdict(one))
    if not settings.json:
        table(
            ("", "what", "wanted", "found"),
            [[one.verdict, one.what, one.wanted, one.found] for one in found],
        )
        for one in found:
            if one.then:
                prose(f"{one.what}: {one.then}")
    if any(one.verdict == FAIL for one in found):
        raise ExitWithCode(NO)


def python() -> Check:
    """The interpreter, and how it was built."""
    from ...testing.bench.measure.interpreter_info import this_build

    build = this_build()
    advice = build.advice()
    return Check(
        "python",
        WARN if advice else PASS,
        build.describe(),
        "3.11 or newer, with PGO",
        advice or "",
    )


def system() -> Check:
    """Nodes run on Linux."""
    found = platform.system()
    if found == "Linux":
        return Check("system", PASS, f"{found} {platform.release()}", "Linux")
    then = "nodes need Linux; programs and dlog itself run here too"
    return Check("system", FAIL, found, "Linux", then)


def descriptors() -> Check:
    """Files and connections that one process may have."""
    from ...runtime.process.descriptor_limit import limit, raise_limit

    count = raise_limit() if sys.platform == "linux" else limit()
    return Check(
        "descriptors",
        PASS if count >= DESCRIPTORS_MIN else WARN,
        f"{count:,}",
        f"{DESCRIPTORS_MIN:,} at least",
        "" if count >= DESCRIPTORS_MIN else "raise `ulimit -Hn`, or LimitNOFILE in the unit",
    )


def room(directory: Path) -> Check:
    """Free bytes."""
    free = shutil.disk_usage(directory).free
    verdict = FAIL if free < FREE_FAIL_BYTES else WARN if free < FREE_WARN_BYTES else PASS
    then = "" if verdict == PASS else "a bookie takes no entries any more before its disk is full"
    return Check("room", verdict, size(free), f"{size(FREE_WARN_BYTES)} at least", then)


def kind(directory: Path, mounts: Path = Path("/proc/self/mounts")) -> Check:
    """What the file system keeps over a power cut, as far as its name tells."""
    wanted = "a file system on a disk"
    try:
        found = _file_system(directory.resolve(), mounts.read_text(errors="replace"))
    except OSError:
        found = ""
    if not found:
        return Check("file system", WARN, "unknown", wanted, "see to it that it is on a disk")
    if found in IN_MEMORY:
        then = "nothing is kept here over a start of the machine"
        return Check("file system", FAIL, found, wanted, then)
    return Check("file system", PASS, found, wanted)


def syncs(directory: Path, seconds: float) -> Check:
    """4 KiB appended and synced, one after the other."""
    from ...testing.bench.measure.hardware_baseline import file_floor

    wanted = f"p99 below {SYNC_P99_WARN_S * 1000:g} ms"
    try:
        with tempfile.TemporaryDirectory(prefix="dlog-check-", dir=directory) as scratch:
            times = file_floor(Path(scratch), 4096, seconds)
    except OSError as error:
        return Check("syncs", FAIL, os.strerror(error.errno or 0), wanted, f"{directory}: {error}")
    p50, p99 = times.percentile_s(50), times.percentile_s(99)
    verdict = FAIL if p99 >= SYNC_P99_FAIL_S else WARN if p99 >= SYNC_P99_WARN_S else PASS
    then = "" if verdict == PASS else "every acknowledgement waits for a sync: take another disk"
    return Check("syncs", verdict, f"p50 {p50 * 1000:.2f}, p99 {p99 * 1000:.2f} ms", wanted, then)


def _file_system(directory: Path, mounts: str) -> str:
    """The type of the deepest mount above a directory; of several at one place the last."""
    best, found = -1, ""
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        place = Path(fields[1].encode().decode("unicode_escape"))  # a blank is \\040 there
        if directory.is_relative_to(place) and len(place.parts) >= best:
            best, found = len(place.parts), fields[2]
    return found
