"""A console that is looked at for an hour: does its memory grow, and that of its page?

    python -m tests.console.hour_story --minutes 60

A cluster in memory, and a console in a process of its own. All the time one has the page of the cluster
open, one the tail of a log that is written, and one goes from page to page and reads records. Where
playwright and a Chromium are, a tab is open besides. Said each minute: the console's memory, its CPU, the
tab's heap after its garbage was collected. In the end: what that comes to in a day, from the slope of all but
the first third.
"""

import argparse
import itertools
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any

from distributedlog.blocking import open_namespace
from distributedlog.cluster.local.child_processes import environment
from tests.cluster.story import dlog
from tests.console.cost import cpu_s
from tests.console.live import Browser

LOGS = 200
GROWING = "live"
PAGE_S = 5.0
"""The visitor goes on after this."""
DAY_MINUTES = 24 * 60
GROWTH_BYTES_MAX = 64 * 2**20
"""In a day; more is no noise of a heap any more."""
PAGES = (
    {"page": "cluster"},
    {"page": "logs", "prefix": ""},
    {"page": "logs", "prefix": "tenant-1"},
    {"page": "log", "name": GROWING},
    {"page": "work"},
)


def anonymous_bytes(pid: int) -> int:
    """Memory of its own, without mapped files."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon in its status")


def slope(values: Sequence[float]) -> float:
    """Of the straight line that is nearest to the values, a step."""
    middle = (len(values) - 1) / 2
    mean = sum(values) / len(values)
    over = sum((at - middle) * (value - mean) for at, value in enumerate(values))
    return over / sum((at - middle) ** 2 for at in range(len(values)))


def until(done: threading.Event, act: Callable[[], None]) -> None:
    """Again and again; a console that was away for a moment is come back to."""
    while not done.is_set():
        try:
            act()
        except (OSError, HTTPException, ValueError, AssertionError):
            done.wait(1.0)


def watch(link: str, done: threading.Event, path: str, **query: str) -> None:
    """One page, until the end."""
    browser = Browser(link)
    browser.let_in()
    for _ in browser.events(path, **query):
        if done.is_set():
            return


def visit(link: str, done: threading.Event, pages: Iterator[dict[str, str]]) -> None:
    """The next page for a while, and some records."""
    browser = Browser(link)
    browser.let_in()
    end = time.monotonic() + PAGE_S
    for _ in browser.events("/events", **next(pages)):
        if done.is_set() or time.monotonic() > end:
            break
    browser.json("/records", 200, log=GROWING, **{"from": "last"})


def write(uri: str, done: threading.Event) -> None:
    """Twenty records a second."""
    with open_namespace(uri) as namespace, namespace.open_log(GROWING).open_writer() as writer:
        for number in itertools.count():
            if done.wait(1.0):
                return
            writer.write_bulk(
                [json.dumps({"order": 20 * number + one}).encode() for one in range(20)]
            )


@contextmanager
def tab(link: str) -> Iterator[Callable[[], int] | None]:
    """A page in Chromium, and what asks for the bytes of its heap; None where none is here."""
    path = shutil.which("chromium") or shutil.which("google-chrome")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        path = None
    if path is None:
        yield None
        return
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(link)
        asked = page.context.new_cdp_session(page)

        def heap_bytes() -> int:
            asked.send("HeapProfiler.collectGarbage")
            return int(asked.send("Runtime.getHeapUsage")["usedSize"])

        yield heap_bytes
        browser.close()


@contextmanager
def running(*arguments: str, uri: str = "") -> Iterator[tuple["subprocess.Popen[bytes]", Any]]:
    """`dlog`, and its first line; ended with the block."""
    process = subprocess.Popen(
        dlog(*arguments),
        stdout=subprocess.PIPE,
        env={**environment(), **({"DLOG_URI": uri} if uri else {})},
    )
    assert process.stdout is not None
    try:
        yield process, json.loads(process.stdout.readline())
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def play(minutes: int, *, say: Callable[[str], None]) -> tuple[float, float | None]:
    """Play it; bytes that the console and the tab would grow by in a day."""
    done = threading.Event()
    threads: list[threading.Thread] = []
    with running("local", "--json", "--memory", "--metadata-nodes", "1") as (_, line):
        uri = line["uri"]
        with open_namespace(uri) as namespace:
            for number in range(LOGS):
                namespace.create_log(f"tenant-{number % 20}/{number:03d}")
            namespace.create_log(GROWING)
        try:
            with ExitStack() as stack:
                listen = ("console", "--listen", "127.0.0.1:0", "--json")
                console, line = stack.enter_context(running(*listen, uri=uri))
                link, pages = line["console"], itertools.cycle(PAGES)
                tasks: list[Callable[[], None]] = [
                    lambda: write(uri, done),
                    lambda: watch(link, done, "/events", page="cluster"),
                    lambda: watch(link, done, "/tail", log=GROWING),
                    lambda: visit(link, done, pages),
                ]
                threads += [threading.Thread(target=until, args=(done, act)) for act in tasks]
                for thread in threads:
                    thread.start()
                heap_bytes = stack.enter_context(tab(link))
                return _measure(console.pid, minutes, heap_bytes, say)
        finally:
            # The console has ended: a tail that nothing comes in any more would be waited for.
            done.set()
            for thread in threads:
                thread.join()


def _measure(
    pid: int, minutes: int, heap_bytes: Callable[[], int] | None, say: Callable[[str], None]
) -> tuple[float, float | None]:
    own: list[float] = []
    heap: list[float] = []
    for minute in range(1, minutes + 1):
        before = cpu_s(pid)
        time.sleep(60)
        own.append(anonymous_bytes(pid))
        words = f"{own[-1] / 2**20:.2f} MiB, {cpu_s(pid) - before:.2f} s of CPU"
        if heap_bytes is not None:
            heap.append(heap_bytes())
            words += f"; the tab {heap[-1] / 2**20:.2f} MiB"
        say(f"minute {minute}: {words}")
    first = minutes // 3
    return DAY_MINUTES * slope(own[first:]), DAY_MINUTES * slope(heap[first:]) if heap else None


def main() -> None:
    """Play it; ends with 1 where memory grows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=int, default=60)
    options = parser.parse_args()
    if options.minutes < 3:
        parser.error("--minutes: 3 at least, for a slope")
    own, heap = play(options.minutes, say=lambda line: print(line, flush=True))
    print(f"in a day: the console {own / 2**20:+.1f} MiB")
    if heap is not None:
        print(f"in a day: the tab {heap / 2**20:+.1f} MiB")
    if max(own, heap or 0.0) > GROWTH_BYTES_MAX:
        sys.exit("memory is not flat")


if __name__ == "__main__":
    main()
