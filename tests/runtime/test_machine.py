"""The real host: this machine's clock, and chance that nobody knows."""

import time

from distributedlog.runtime.disk.memory_disk import MemoryDisk
from distributedlog.runtime.machine import real_host


def test_hosts_draw_differently() -> None:
    """Node ids and election delays come from here: two nodes must not draw the same."""
    assert real_host("a").random.random() != real_host("a").random.random()


def test_the_wall_clock_is_in_milliseconds() -> None:
    assert abs(real_host("a").wall_ms() - time.time() * 1000) < 60_000


def test_disks_are_by_role() -> None:
    disk = MemoryDisk()

    assert real_host("a", disks={"journal": disk}).disks == {"journal": disk}
    assert real_host("a").disks == {}
