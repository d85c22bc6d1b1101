"""Output of commands arrives whole, or the command fails, on any kind of descriptor."""

import errno
import fcntl
import io
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from distributedlog.cli.framework.standard_streams import StandardFile, read_some, write_stdout

DLOG = [sys.executable, "-m", "distributedlog.cli.main"]
PIPE_BYTES = 4096


def make_nonblocking(descriptor: int) -> None:
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_NONBLOCK)


def small_pipe() -> tuple[int, int]:
    """A pipe that holds less than a command prints."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return reading, writing


def read_all(descriptor: int) -> bytes:
    with os.fdopen(descriptor, "rb") as file:
        return file.read()


def test_read_waits_for_a_nonblocking_pipe_that_is_empty() -> None:
    reading, writing = os.pipe()
    make_nonblocking(reading)
    late = threading.Timer(0.1, os.write, (writing, b"late"))
    late.start()
    try:
        assert read_some(reading, 100) == b"late"
        os.close(writing)
        assert read_some(reading, 100) == b""
    finally:
        late.join()
        os.close(reading)


def test_write_to_a_nonblocking_pipe_is_whole() -> None:
    reading, writing = small_pipe()
    make_nonblocking(writing)
    data = os.urandom(20 * PIPE_BYTES)

    def write() -> None:
        assert StandardFile(writing).write(data) == len(data)
        os.close(writing)

    writer = threading.Thread(target=write)
    writer.start()
    received = read_all(reading)
    writer.join()

    assert received == data


def test_flush_does_not_wait_for_a_thread_that_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends a command whose output nobody reads."""
    reading, writing = small_pipe()
    data = os.urandom(20 * PIPE_BYTES)
    stream = io.TextIOWrapper(io.BufferedWriter(StandardFile(writing)), encoding="utf-8")
    monkeypatch.setattr(sys, "stdout", stream)
    writer = threading.Thread(target=write_stdout, args=(data,), daemon=True)
    writer.start()
    received = os.read(reading, 1)  # the thread is writing, and the pipe is full
    sys.stdout.flush()
    assert writer.is_alive()

    while len(received) < len(data):
        received += os.read(reading, PIPE_BYTES)
    writer.join()
    assert received == data
    os.close(reading)
    os.close(writing)


def test_write_to_a_full_device_fails() -> None:
    with (
        open("/dev/full", "wb", buffering=0) as full,
        pytest.raises(OSError, match="No space left") as raised,
    ):
        StandardFile(full.fileno()).write(b"data")
    assert raised.value.errno == errno.ENOSPC


def test_read_from_a_nonblocking_pipe_waits_for_bytes_and_sees_the_end() -> None:
    reading, writing = os.pipe()
    make_nonblocking(reading)
    file, buffer = StandardFile(reading), bytearray(10)

    def write_late() -> None:
        os.write(writing, b"late")
        os.close(writing)

    threading.Timer(0.05, write_late).start()

    assert file.readinto(buffer) == 4
    assert file.readinto(buffer) == 0
    os.close(reading)


@pytest.mark.parametrize("unbuffered", [False, True], ids=["buffered", "unbuffered"])
def test_command_prints_everything_to_a_slow_nonblocking_pipe(unbuffered: bool) -> None:
    """As the image sets it (PYTHONUNBUFFERED), and as ssh leaves a pipe."""
    command = [*DLOG, "config", "init", "bookie"]
    expected = subprocess.run(command, capture_output=True, check=True).stdout
    assert len(expected) > PIPE_BYTES
    reading, writing = small_pipe()
    make_nonblocking(writing)
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"} if unbuffered else dict(os.environ)
    process = subprocess.Popen(command, stdout=writing, env=environment)
    os.close(writing)

    assert read_all(reading) == expected
    assert process.wait() == 0


def test_command_fails_if_its_last_output_does_not_fit(tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*DLOG, "config", "init", "bookie"],
            stdout=full,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            check=False,
        )
    assert done.returncode == 1
    assert b"No space left" in done.stderr
