"""What a write under a user's name replaces, streams into and refuses."""

import os
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from distributedlog.runtime.disk.output_file import (
    output_file,
    resolve_destination,
    write_all,
    write_file,
)
from distributedlog.runtime.interfaces.errors import DiskFailed, DiskFull, InvalidRequest
from tests.runtime.mounts import mounted

CONTENT = b"the new content"


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_file_is_replaced_and_keeps_its_mode(tmp_path: Path) -> None:
    file = tmp_path / "out"
    file.write_bytes(b"old")
    file.chmod(0o640)

    write_file(file, CONTENT)

    assert file.read_bytes() == CONTENT
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert names(tmp_path) == ["out"]


def test_new_file_has_the_mode_of_the_umask_and_a_secret_its_own(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_file(tmp_path / "out", CONTENT)
        write_file(tmp_path / "key", CONTENT, secret=True)
    finally:
        os.umask(before)

    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


def test_secret_over_an_open_file_is_closed_to_others(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"old")
    (tmp_path / "key").chmod(0o644)

    write_file(tmp_path / "key", CONTENT, secret=True)

    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


@pytest.mark.parametrize("exists", [True, False])
def test_link_stays_and_its_target_is_replaced(tmp_path: Path, exists: bool) -> None:
    (tmp_path / "elsewhere").mkdir()
    target, link = tmp_path / "elsewhere" / "target", tmp_path / "link"
    if exists:
        target.write_bytes(b"old")
    link.symlink_to("elsewhere/target")

    write_file(link, CONTENT)

    assert link.is_symlink()
    assert target.read_bytes() == CONTENT
    assert names(target.parent) == ["target"]


def test_device_receives_the_bytes_and_stays_a_device(tmp_path: Path) -> None:
    (tmp_path / "null").symlink_to("/dev/null")

    write_file("/dev/null", CONTENT)
    write_file(tmp_path / "null", CONTENT)

    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert (tmp_path / "null").is_symlink()


def test_pipe_receives_the_bytes_and_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()

    write_file(pipe, CONTENT * 10_000)
    reader.join()

    assert read == [CONTENT * 10_000]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_pipe_without_a_reader_is_refused_where_nobody_may_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    writing = output_file(tmp_path / "pipe", reader_wait_s=0)
    with pytest.raises(InvalidRequest, match="no program reads this pipe"):
        writing.__enter__()


def test_reader_that_ends_early_is_a_failure(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)

    with output_file(tmp_path / "pipe") as out:
        os.close(reader)
        with pytest.raises(DiskFailed, match="its reader ended"):
            out.write(CONTENT)


@pytest.mark.parametrize("name", ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_standard_output_is_appended_to(tmp_path: Path, name: str) -> None:
    """A redirection may append to a file, and earlier output may be in it."""
    program = (
        "import sys; from distributedlog.runtime.disk.output_file import write_file;"
        "sys.stdout.write('printed before\\n'); write_file(sys.argv[1], 'written\\n')"
    )
    with (tmp_path / "out").open("ab") as out:
        out.write(b"old\n")
        out.flush()
        subprocess.run([sys.executable, "-c", program, name], stdout=out, check=True)

    assert (tmp_path / "out").read_text() == "old\nprinted before\nwritten\n"
    assert names(tmp_path) == ["out"]


def test_standard_output_may_be_a_socket() -> None:
    program = "from distributedlog.runtime.disk.output_file import write_file; write_file('/dev/stdout', 'x')"
    ours, theirs = socket.socketpair()
    with ours, theirs:
        subprocess.run([sys.executable, "-c", program], stdout=theirs.fileno(), check=True)
        assert ours.recv(10) == b"x"


def test_directory_and_socket_are_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("socket")
    for name, kind in ((".", "a directory"), ("socket", "a socket"), ("missing/", "a directory")):
        with pytest.raises(InvalidRequest, match=f"{kind}.*give the name of a file"):
            resolve_destination(name)


def test_block_device_is_refused(tmp_path: Path) -> None:
    device = tmp_path / "disk"
    try:
        os.mknod(device, 0o600 | stat.S_IFBLK, os.makedev(7, 0))
    except OSError:
        pytest.skip("making a block device needs root")

    with pytest.raises(InvalidRequest, match="a block device"):
        write_file(device, CONTENT)

    assert stat.S_ISBLK(device.stat().st_mode)


@pytest.mark.parametrize("path", ["missing/out", "\0", "x" * 300, "loop", "file/out"])
def test_name_that_cannot_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.chdir(tmp_path)

    with pytest.raises(InvalidRequest):
        write_file(path, CONTENT)

    assert names(tmp_path) == ["file", "loop"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, error: type[BaseException]
) -> None:
    (tmp_path / "out").write_bytes(b"old")

    def write_half() -> None:
        with output_file(tmp_path / "out") as out:
            out.write(CONTENT)
            raise error

    with pytest.raises(error):
        write_half()

    assert (tmp_path / "out").read_bytes() == b"old"
    assert names(tmp_path) == ["out"]


def test_full_disk_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    with mounted(tmp_path / "small", "tmpfs", "-o", "size=64k") as place:
        (place / "out").write_bytes(b"old")

        with pytest.raises(DiskFull):
            write_file(place / "out", bytes(1 << 20))

        assert (place / "out").read_bytes() == b"old"
        assert names(place) == ["out"]


def test_two_writes_of_one_file_do_not_mix(tmp_path: Path) -> None:
    file = tmp_path / "out"
    with output_file(file) as first, output_file(file) as second:
        first.write(b"1" * 1000)
        second.write(b"2" * 10)
        first.write(b"1" * 1000)
        assert not file.exists()

    assert file.read_bytes() == b"1" * 2000  # the one that ended last
    assert names(tmp_path) == ["out"]


def test_non_blocking_descriptor_receives_everything() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    content = os.urandom(1 << 20)
    read: list[bytes] = []

    def drain() -> None:
        with open(reading, "rb") as file:
            read.append(file.read())

    reader = threading.Thread(target=drain)
    reader.start()
    assert write_all(writing, content) == len(content)
    os.close(writing)
    reader.join()

    assert read == [content]
