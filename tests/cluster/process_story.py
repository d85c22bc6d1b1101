"""The story of the acceptance: real input, real processes, kills, a pause, a restart, the same bytes.

    python -m tests.cluster.process_story --whole

writes the lines of all .py files of the installed standard library with `dlog log write` into 3 metadata
and 4 bookie processes; meanwhile it kills one bookie and the metadata leader with -9 and pauses another
bookie for 10 s; then it kills everything, starts it again, reads the log and compares digests.
"""

import argparse
import hashlib
import json
import signal
import subprocess
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.cluster.story import Cluster
from tests.preloaded import Started

PAUSE_S = 10.0
SMALL = ("json", "email", "asyncio", "logging")
LOG = "corpus"
Say = Callable[[str], None]


def corpus(whole: bool) -> Iterator[bytes]:
    """The lines of .py files of the standard library, as bytes with their newline."""
    library = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(library.rglob("*.py")):
        place = path.relative_to(library).parts
        if "site-packages" in place or not (whole or place[0] in SMALL):
            continue
        data = path.read_bytes()
        yield data if data.endswith(b"\n") or not data else data + b"\n"


def feed(chunks: list[bytes], seconds: float, process: Started) -> None:
    """Write the chunks into the process' stdin, spread evenly over ``seconds``."""
    assert process.stdin is not None
    start = time.monotonic()
    try:
        for number, chunk in enumerate(chunks):
            wait_s = start + seconds * number / len(chunks) - time.monotonic()
            if wait_s > 0:
                time.sleep(wait_s)
            process.stdin.write(chunk)
            process.stdin.flush()
        process.stdin.close()
    except BrokenPipeError:
        pass  # it ended early; its exit code and its words tell


def run(directory: Path, *, whole: bool, seconds: float, say: Say) -> None:
    """Play it; raises `AssertionError` where the story does not hold."""
    data = b"".join(corpus(whole))
    expected, lines = hashlib.sha256(data).hexdigest(), data.count(b"\n")
    step = max(1, len(data) // 1000)
    chunks = [data[at : at + step] for at in range(0, len(data), step)]
    say(f"corpus: {lines:,} lines, {len(data):,} bytes, sha256 {expected[:16]}")
    with Cluster.planned(directory, bookies=4) as cluster:
        cluster.start()
        say(f"3 metadata nodes and 4 bookies serve at {cluster.uri}")
        leader = cluster.leader()
        begun = time.monotonic()
        writer = cluster.popen(
            "log", "write", LOG, "--create", "--json", "--timeout", "60",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        feeder = threading.Thread(target=feed, args=(chunks, seconds, writer), daemon=True)
        feeder.start()
        time.sleep(seconds * 0.15)
        cluster.kill("bookie1")
        say(f"{time.monotonic() - begun:5.1f} s  kill -9 of bookie1")
        time.sleep(seconds * 0.1)
        cluster.served["bookie2"].signal(signal.SIGSTOP)
        say(f"{time.monotonic() - begun:5.1f} s  SIGSTOP of bookie2 for {PAUSE_S:g} s")
        paused = time.monotonic()
        time.sleep(seconds * 0.1)
        cluster.kill(leader)
        say(f"{time.monotonic() - begun:5.1f} s  kill -9 of {leader}, the metadata leader")
        time.sleep(max(0.0, paused + PAUSE_S - time.monotonic()))
        cluster.served["bookie2"].signal(signal.SIGCONT)
        say(f"{time.monotonic() - begun:5.1f} s  bookie2 goes on")
        out, errors = _finish(writer, feeder)
        assert writer.returncode == 0, (writer.returncode, errors[-3000:])
        said = json.loads(out)
        say(
            f"{time.monotonic() - begun:5.1f} s  written: {said['records']:,} records, to {said['last_dlsn']}"
        )
        assert said["records"] == lines, said
        assert said["bytes"] == len(data) - lines, said
        cluster.kill()
        say(f"{time.monotonic() - begun:5.1f} s  kill -9 of all")
        cluster.start()
        say(f"{time.monotonic() - begun:5.1f} s  all started again")
        before = time.monotonic()
        read = cluster.run("log", "read", LOG)
        assert read.returncode == 0, read.stderr[-3000:]
        found = hashlib.sha256(read.stdout).hexdigest()
        say(
            f"read {len(read.stdout):,} bytes in {time.monotonic() - before:.1f} s, sha256 {found[:16]}"
        )
        assert found == expected, "what was read is not what was written"


def _finish(process: Started, feeder: threading.Thread) -> tuple[bytes, bytes]:
    feeder.join(timeout=300)
    process.stdin = None  # closed by the feeder
    return process.communicate(timeout=120)


def main() -> None:
    """Run it as a command."""
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    options.add_argument("--whole", action="store_true", help="all .py files, not a few packages")
    options.add_argument(
        "--seconds", type=float, default=20.0, help="how long the writing is spread over"
    )
    options.add_argument("--data", type=Path, help="default: a temporary directory")
    given = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="dlog-story-") as scratch:
        run(
            given.data or Path(scratch),
            whole=given.whole,
            seconds=given.seconds,
            say=lambda text: print(text, flush=True),
        )
    print("every line came back, byte for byte, in order")


if __name__ == "__main__":
    main()
