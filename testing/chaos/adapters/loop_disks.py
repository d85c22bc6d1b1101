"""Separate file systems for nodes: ext4 on loop devices, to cut power, fill or break them.

A power failure is simulated by the shutdown ioctl without a flush of the log. Data that was not synced is
lost, and the next mount replays the ext4 journal as after a real one. For a broken device, the image is on a
tmpfs that becomes full. New blocks of the image are then not available, and a write that the page cache
accepted fails at the device.
"""

import errno
import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

import trio

from ..model.adapter import ChaosFailed

FS_IOC_SHUTDOWN = (2 << 30) | (4 << 16) | (ord("X") << 8) | 125
WITHOUT_LOG_FLUSH = 2
FIFREEZE = (3 << 30) | (4 << 16) | (ord("X") << 8) | 119
FITHAW = (3 << 30) | (4 << 16) | (ord("X") << 8) | 120
MIB = 1 << 20
FILLER = "chaos-filler"
TRIES = 100
TRY_AGAIN_S = 0.1


def refusal() -> str | None:
    """Return why such file systems are not available on this machine; None if they are."""
    if os.geteuid() != 0:
        return "needs root, to mount a file system"
    if not os.path.exists("/dev/loop-control"):
        return "needs /dev/loop-control, for a loop device"
    for tool in ("mkfs.ext4", "mount", "umount"):
        if shutil.which(tool) is None:
            return f"needs {tool} on the PATH"
    return None


class LoopDisk:
    """The file system of one node."""

    def __init__(self, base: Path, megabytes: int, *, breakable: bool) -> None:
        self.base = base
        self.mount_point = base / "mount"
        self.megabytes = megabytes
        self._tmpfs = base / "device" if breakable else None
        self._image = (self._tmpfs or base) / "image"

    async def make(self) -> None:
        """Create and mount it. Raises `ChaosFailed`."""
        self.mount_point.mkdir(parents=True)
        if self._tmpfs is not None:
            self._tmpfs.mkdir()
            size = f"size={self.megabytes + 8}m"
            await run("mount", "-t", "tmpfs", "-o", size, "tmpfs", str(self._tmpfs))
        with self._image.open("wb") as file:
            file.truncate(self.megabytes * MIB)
        options = "lazy_itable_init=0,lazy_journal_init=0"
        await run("mkfs.ext4", "-q", "-F", "-m", "0", "-E", options, str(self._image))
        await self.mount()

    async def mount(self) -> None:
        """Mount it as at a start after a power failure, with a replay of the journal. Raises `ChaosFailed`.

        A mount namespace that was created in the meantime, such as that of a container, keeps the dead file
        system alive for a moment. The kernel then returns the dead one, and the mount is repeated.
        """
        # With errors=continue, fsync reports a failed write, and the rest of the file system still works.
        command = ("mount", "-o", "loop,errors=continue", str(self._image), str(self.mount_point))
        for _ in range(TRIES):
            await run(*command)
            if _takes_files(self.mount_point):
                return
            await self.unmount()
            await trio.sleep(TRY_AGAIN_S)
        raise ChaosFailed(f"{self.mount_point} was mounted, but files cannot be created")

    async def unmount(self, *, lazily: bool = False) -> None:
        """Unmount it, when no process uses it any more. Raises `ChaosFailed`."""
        for _ in range(TRIES):
            try:
                await run("umount", *(["-l"] if lazily else []), str(self.mount_point))
                return
            except ChaosFailed:
                await trio.sleep(
                    TRY_AGAIN_S
                )  # the last descriptor of a killed process is closed a little later
        raise ChaosFailed(f"{self.mount_point} remains busy")

    async def remove(self) -> None:
        """Unmount all mounted file systems; the files remain."""
        with trio.CancelScope(shield=True):
            for mounted in (self.mount_point, self._tmpfs):
                if mounted is not None and mounted.exists():
                    await trio.run_process(
                        ["umount", "-l", str(mounted)], check=False, capture_stderr=True
                    )

    # --- filling it -----------------------------------------------------------------------------------

    def fill(self, leave_bytes: int) -> None:
        """Fill the file system, except for ``leave_bytes``."""
        _fill(self.mount_point / FILLER, leave_bytes)

    def free(self) -> None:
        """Free the space durably. Otherwise, a power failure would restore the filler."""
        (self.mount_point / FILLER).unlink(missing_ok=True)
        descriptor = os.open(self.mount_point, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    # --- slowing it -----------------------------------------------------------------------------------

    def set_frozen(self, is_frozen: bool) -> None:
        """Freeze or thaw the file system.

        While it is frozen, no write ends. Repeated calls have no effect.
        """
        descriptor = os.open(self.mount_point, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(descriptor, FIFREEZE if is_frozen else FITHAW, 0)
        except OSError as error:
            if error.errno not in (errno.EBUSY, errno.EINVAL):  # it is in this state already
                raise ChaosFailed(
                    f"{self.mount_point} cannot be frozen: {error.strerror}"
                ) from None
        finally:
            os.close(descriptor)

    # --- breaking it ----------------------------------------------------------------------------------

    def break_device(self) -> None:
        """Make writes of new blocks fail at the device."""
        assert self._tmpfs is not None, "made without `breakable`"
        _fill(self._tmpfs / FILLER, 0)

    async def mend_device(self) -> None:
        """Make all blocks writable again, while the node is down. Data in the page cache is lost."""
        assert self._tmpfs is not None, "made without `breakable`"
        (self._tmpfs / FILLER).unlink(missing_ok=True)
        cut_power([self])
        await self.unmount()
        completed = await trio.run_process(
            ["e2fsck", "-p", str(self._image)], check=False, capture_stdout=True
        )
        if completed.returncode >= 4:
            raise ChaosFailed(
                f"the file system of {self.base.name} cannot be repaired by e2fsck -p"
            )
        await self.mount()


def cut_power(disks: Sequence[LoopDisk]) -> None:
    """Cut the power of several disks at once, at most 40 ms per disk."""
    for disk in disks:
        descriptor = os.open(disk.mount_point, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, FS_IOC_SHUTDOWN, struct.pack("I", WITHOUT_LOG_FLUSH))
        except OSError as error:
            if error.errno != errno.EIO:  # the file system is already shut down
                raise
        finally:
            os.close(descriptor)


def _takes_files(directory: Path) -> bool:
    """Return whether files can be created. A file system that was shut down returns errors."""
    probe = directory / "chaos-probe"
    try:
        probe.write_bytes(b"")
        probe.unlink()
    except OSError:
        return False
    return True


def _fill(filler: Path, leave_bytes: int) -> None:
    file_system = os.statvfs(filler.parent)
    bytes_left = file_system.f_bavail * file_system.f_frsize - leave_bytes
    descriptor = os.open(filler, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        size, step = os.fstat(descriptor).st_size, 16 * MIB
        while bytes_left > 0 and step >= file_system.f_frsize:
            step = min(step, max(file_system.f_frsize, bytes_left))
            try:
                os.posix_fallocate(descriptor, size, step)
            except OSError:
                step //= 2
                continue
            size, bytes_left = size + step, bytes_left - step
    finally:
        os.close(descriptor)


async def run(*command: str) -> None:
    """Run a system command. Raises `ChaosFailed` with its output."""
    completed = await trio.run_process(
        command, check=False, capture_stdout=True, capture_stderr=True, stdin=subprocess.DEVNULL
    )
    if completed.returncode:
        error_text = (
            completed.stderr.decode(errors="replace").strip() or f"exit code {completed.returncode}"
        )
        raise ChaosFailed(f"{' '.join(command)}: {error_text}")
