"""What a process says to who does not read (H266): it goes on, and what was left out is counted."""

import json
import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from distributedlog.cluster.process.stderr_logs import JsonFormatter, OutputHandler
from distributedlog.runtime.process.stderr_writer import QUEUE_BYTES_MAX, NonBlockingOutput

LINE = b"x" * 1023 + b"\n"
LONG_S = 30.0


class Pipe:
    """Both ends."""

    def __init__(self) -> None:
        self.reads, self.writes = os.pipe()

    def fill(self) -> int:
        """To the last byte; how many that were."""
        os.set_blocking(self.writes, False)
        count = 0
        for size in (4096, 1):
            with suppress(BlockingIOError):
                while True:
                    count += os.write(self.writes, b"." * size)
        os.set_blocking(self.writes, True)
        return count

    def read(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            found += os.read(self.reads, count - len(found))
        return found


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    found = Pipe()
    yield found
    for end in (found.reads, found.writes):
        with suppress(OSError):
            os.close(end)


def test_what_is_said_comes_in_its_order(pipe: Pipe) -> None:
    out = NonBlockingOutput(pipe.writes)
    lines = [b"%d\n" % n for n in range(1000)]
    for line in lines:
        assert out.offer(line)
    assert out.drain(LONG_S)
    assert pipe.read(sum(map(len, lines))) == b"".join(lines)
    assert out.dropped_writes == 0


def test_a_pipe_that_nobody_reads_holds_nobody_and_no_more_than_the_bound(pipe: Pipe) -> None:
    filled = pipe.fill()
    out = NonBlockingOutput(pipe.writes)

    taken = sum(out.offer(LINE) for _ in range(3 * QUEUE_BYTES_MAX // len(LINE)))

    assert taken == QUEUE_BYTES_MAX // len(LINE)
    assert out.dropped_writes == 2 * QUEUE_BYTES_MAX // len(LINE)
    assert not out.drain(0.01)
    assert pipe.read(filled + taken * len(LINE))[filled:] == LINE * taken
    assert out.drain(LONG_S)
    assert out.offer(b"again\n")
    assert pipe.read(6) == b"again\n"


def test_the_next_line_says_how_many_were_left_out(pipe: Pipe) -> None:
    filled = pipe.fill()
    out = NonBlockingOutput(pipe.writes)
    handler = OutputHandler(out)
    handler.setFormatter(JsonFormatter("b1"))

    def say(text: str) -> None:
        handler.handle(logging.makeLogRecord({"msg": text, "name": "distributedlog.x"}))

    out.offer(b"." * QUEUE_BYTES_MAX)
    for _ in range(3):
        say("nobody reads")
    pipe.read(filled + QUEUE_BYTES_MAX)
    assert out.drain(LONG_S)
    say("one")
    say("two")
    assert out.drain(LONG_S)

    os.close(pipe.writes)
    with os.fdopen(os.dup(pipe.reads), "rb") as lines:
        said = [json.loads(line) for line in lines]
    assert [(one["message"], one.get("unread")) for one in said] == [("one", 3), ("two", None)]


def test_who_reads_no_more_ends_nobody(pipe: Pipe) -> None:
    out = NonBlockingOutput(pipe.writes)
    os.close(pipe.reads)

    assert out.offer(b"one\n")
    assert out.drain(LONG_S)

    assert out.dropped_writes == 1


def test_a_descriptor_that_does_not_wait_loses_nothing(pipe: Pipe) -> None:
    os.set_blocking(pipe.writes, False)
    out = NonBlockingOutput(pipe.writes)
    for _ in range(200):
        out.offer(LINE)
    assert pipe.read(200 * len(LINE)) == 200 * LINE
    assert out.drain(LONG_S)
    assert out.dropped_writes == 0


def test_a_forked_child_says_its_own_and_not_its_parents(pipe: Pipe) -> None:
    filled = pipe.fill()
    out = NonBlockingOutput(pipe.writes)
    out.offer(b"parent\n")  # its thread waits now
    child = os.fork()
    if child == 0:
        out.offer(b"child\n")
        out.drain(LONG_S)
        os._exit(0)
    try:
        assert sorted(pipe.read(filled + 13)[filled:].split()) == [b"child", b"parent"]
        assert os.waitpid(child, 0)[1] == 0
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise


def test_without_a_thread_to_be_had_it_waits_for_the_next_line(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the limit of threads: nothing raises, and nothing is lost when there is one again."""

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    out = NonBlockingOutput(pipe.writes)
    with monkeypatch.context() as at_the_limit:
        at_the_limit.setattr(threading.Thread, "start", refuse)
        assert out.offer(b"one\n")
    assert out.offer(b"two\n")
    assert out.drain(LONG_S)
    assert pipe.read(8) == b"one\ntwo\n"
