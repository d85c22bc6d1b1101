"""A forked child and its parent: neither disturbs the other (H15)."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, socket, sys, traceback, trio
from distributedlog.runtime.schedule.background_loop import Background
from distributedlog.runtime.interfaces.errors import AlreadyClosed, ConnectionLost, DataDirectoryInUse
from distributedlog.runtime.disk.directory_disk import DirectoryDisk
from distributedlog.runtime.net.tcp import dial, listen

how, path = sys.argv[1:]
loop = Background()
loop.start()


def dead(expected, call, *args):
    try:
        call(*args)
    except expected as error:
        assert "fork" in str(error), error
    else:
        raise AssertionError(f"{call} worked in the child")


async def begin():
    disk = DirectoryDisk(path, sync="thread")
    disk.lock()
    file = await disk.create("f", size=8192, direct=True)
    await file.write_synced(0, disk.aligned_buffer(4096))
    index = await disk.open_map("index")
    await index.apply([(b"k", b"parent")])
    index.get(b"k")
    listener = await listen(("127.0.0.1", 0))
    dialled = await dial(listener.address)
    return disk, file, index, listener, dialled, await listener.accept()


disk, file, index, listener, dialled, accepted = loop.run(begin)


def in_child():
    dead(AlreadyClosed, file.write_at, 0, (b"x",))
    dead(AlreadyClosed, file.read_at, 0, 1)
    dead(AlreadyClosed, index.get, b"k")
    dead(AlreadyClosed, disk.list)
    dead(AlreadyClosed, disk.lock)
    dead(AlreadyClosed, loop.run, trio.sleep, 0)
    dead(ConnectionLost, dialled.try_send, (b"from the child",))
    dead(ConnectionLost, accepted.try_send, (b"from the child",))
    for fd in range(3, 50):
        if os.path.lexists(f"/proc/self/fd/{fd}"):
            held = os.readlink(f"/proc/self/fd/{fd}")
            assert "index" in held or not held.startswith(path), held  # see lmdb_map.py
            if held.startswith("socket:"):  # but for those by which trio wakes its loops
                assert socket.socket(fileno=os.dup(fd)).family == socket.AF_UNIX, held
    for thing in (file, index, dialled, accepted, listener):
        thing.close()
    fresh = DirectoryDisk(path)
    try:
        fresh.lock()
    except DataDirectoryInUse:
        pass
    else:
        raise AssertionError("the child took the parent's lock")
    own = Background()
    own.start()
    assert own.run(answer) == 42
    if how == "exec":
        os.execv(sys.executable, [sys.executable, "-c", "pass"])
    if how == "at once":
        os._exit(0)
    sys.exit(0)  # through the whole end of an interpreter


async def go_on():
    assert dialled.try_send((b"from the parent",)) == 15
    buffer = memoryview(bytearray(100))
    assert await accepted.receive_into(buffer) == 15
    await file.write_synced(4096, disk.aligned_buffer(4096))
    await index.apply([(b"k", b"after")])
    assert index.get(b"k") == b"after"
    second = await dial(listener.address)
    (await listener.accept()).close()
    index.close()
    await disk.close()


async def answer():
    return 42


child = os.fork()
if child == 0:
    try:
        in_child()
    except Exception:
        traceback.print_exc()
        os._exit(1)
_, status = os.waitpid(child, 0)
assert status == 0, status
loop.run(go_on)
loop.stop()
print("all is well")
"""


@pytest.mark.processes
@pytest.mark.parametrize("how", ["at once", "exit", "exec"])
def test_the_childs_handles_are_dead_and_the_parents_live(tmp_path: Path, how: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "all is well\n", "")
