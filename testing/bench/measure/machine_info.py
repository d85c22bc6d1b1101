"""The machine, and the CPU usage of other processes during a run: a rate means little without them."""

import argparse
import os
import platform
from pathlib import Path

from .interpreter_info import this_build


class OthersCpu:
    """The CPU usage of processes of other sessions since the creation of this object.

    Processes of the same session (`setsid`) are the benchmark, a cluster that the same shell started, and
    their children. The rest of the machine's busy time, including that of the kernel, counts as that of
    others.
    """

    def __init__(self) -> None:
        self._busy_ticks, self._total_ticks = _machine_ticks()
        self._own_ticks = _session_ticks()

    def percent(self) -> float:
        """Return the usage in percent of all cores since the start, or -1.0 if /proc has no figures."""
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
    """Return the interpreter and the machine, on which all figures depend."""
    return {
        "python": platform.python_version(),
        "interpreter": this_build().as_json(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
    }


def cpu_seconds(pid: int) -> float:
    """Return the user and system time of a process with its threads, or 0.0 if it has ended."""
    session_and_ticks = _process_ticks(Path(f"/proc/{pid}/stat"))
    return 0.0 if session_and_ticks is None else session_and_ticks[1] / os.sysconf("SC_CLK_TCK")


def anonymous_bytes(pid: int) -> int:
    """Return the anonymous memory of a process, or 0 if it has ended."""
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
    """Return the session and the used ticks of a process, or None if it has ended."""
    try:
        text = path.read_text()
    except OSError:
        return None
    stat_fields = text.rpartition(")")[
        2
    ].split()  # the process name before it may contain any character
    return int(stat_fields[3]), int(stat_fields[11]) + int(stat_fields[12])


def data_directory(text: str) -> Path:
    """Return the absolute path of an argument's directory, and create it if it is missing.

    The path is absolute because each build runs in a different directory.

    Raises:
        argparse.ArgumentTypeError: The directory cannot be created.
    """
    path = Path(os.path.abspath(text))
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error.strerror}") from None
    return path
