"""What else the machine did during a run, and what it is: a rate means little without it."""

import argparse
import os
import platform
from pathlib import Path

from .interpreter_info import this_build


class OthersCpu:
    """The CPU that processes outside of this session took, from the making of this on.

    Own means: the same session (`setsid`), so the bench, the cluster that the same shell started, and
    their children. The rest of the machine's busy time is other people's, the kernel's work included.
    """

    def __init__(self) -> None:
        self._busy_ticks, self._total_ticks = _machine_ticks()
        self._own_ticks = _session_ticks()

    def percent(self) -> float:
        """Percent of all cores since the start; -1.0 where /proc does not say."""
        busy, total = _machine_ticks()
        own_ticks = _session_ticks()
        if total <= self._total_ticks:
            return -1.0
        own_spent = sum(
            max(0, ticks - self._own_ticks.get(pid, 0)) for pid, ticks in own_ticks.items()
        )
        others_spent = max(0, busy - self._busy_ticks - own_spent)
        return round(100 * others_spent / (total - self._total_ticks), 1)


def settings() -> dict[str, object]:
    """What a figure depends on."""
    return {
        "python": platform.python_version(),
        "interpreter": this_build().as_json(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
    }


def cpu_seconds(pid: int) -> float:
    """User and system time that a process has used, its threads included; 0.0 when it is gone."""
    session_and_ticks = _process_ticks(Path(f"/proc/{pid}/stat"))
    return 0.0 if session_and_ticks is None else session_and_ticks[1] / os.sysconf("SC_CLK_TCK")


def anonymous_bytes(pid: int) -> int:
    """What a process has of memory that is no file's; 0 when it is gone."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def _machine_ticks() -> tuple[int, int]:
    try:
        line = Path("/proc/stat").read_text().split("\n", 1)[0]
    except OSError:
        return 0, 0
    ticks = [
        int(part) for part in line.split()[1:9]
    ]  # user nice system idle iowait irq softirq steal
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def _session_ticks() -> dict[int, int]:
    session = os.getsid(0)
    ticks_by_pid: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        ticks = _process_ticks(entry)
        if ticks is not None and ticks[0] == session:
            ticks_by_pid[int(entry.parent.name)] = ticks[1]
    return ticks_by_pid


def _process_ticks(path: Path) -> tuple[int, int] | None:
    """(session, ticks used)"""
    try:
        text = path.read_text()
    except OSError:
        return None
    stat_fields = text.rpartition(")")[2].split()  # the name before may hold anything
    return int(stat_fields[3]), int(stat_fields[11]) + int(stat_fields[12])


def data_directory(text: str) -> Path:
    """An argument's directory, from the root, made where it is missing.

    From the root, for each build runs in a directory of its own. Raises `argparse.ArgumentTypeError`.
    """
    path = Path(os.path.abspath(text))
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error.strerror}") from None
    return path
