"""Damage hits what is written, as much as it was told, and nothing else."""

from pathlib import Path
from random import Random

import pytest

from distributedlog.testing.chaos.adapters.disk_damage import damage, rot
from distributedlog.testing.chaos.model.scenario import Fault

SIZE = 64 * 1024


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A preallocated journal with a little in it, an index, a lock."""
    (tmp_path / "index").mkdir()
    (tmp_path / "journal-1").write_bytes(b"\x55" * 8192 + bytes(SIZE - 8192))
    (tmp_path / "index" / "data.mdb").write_bytes(b"\xaa" * SIZE)
    (tmp_path / "LOCK").write_bytes(b"1")
    return tmp_path


def bits_that_differ(one: bytes, other: bytes) -> int:
    return sum((a ^ b).bit_count() for a, b in zip(one, other, strict=True))


def test_bits_are_flipped_where_something_is_written(directory: Path) -> None:
    before = (directory / "journal-1").read_bytes()

    said = damage(directory, Fault("damage", files="**/journal-*", amount=20), Random(1))

    after = (directory / "journal-1").read_bytes()
    assert bits_that_differ(before, after) == 20
    assert after[8192 + 4096 :] == before[8192 + 4096 :]
    assert said == "flipped bits: 20 in journal-1"
    assert (directory / "index" / "data.mdb").read_bytes() == b"\xaa" * SIZE


def test_a_stretch_is_overwritten(directory: Path) -> None:
    fault = Fault("damage", files="**/data.mdb", how="tear", amount=4096)

    damage(directory, fault, Random(1))

    after = (directory / "index" / "data.mdb").read_bytes()
    assert len(after) == SIZE
    places = [n for n, byte in enumerate(after) if byte != 0xAA]
    assert places
    assert places[-1] - places[0] < 4096


def test_a_file_is_cut_and_another_removed(directory: Path) -> None:
    damage(directory, Fault("damage", files="**/journal-*", how="cut", amount=100), Random(1))
    damage(directory, Fault("damage", files="index/*", how="remove"), Random(1))

    assert (directory / "journal-1").stat().st_size == SIZE - 100
    assert not (directory / "index" / "data.mdb").exists()
    assert (directory / "LOCK").read_bytes() == b"1"


def test_nothing_to_damage_is_said(directory: Path) -> None:
    said = damage(directory, Fault("damage", files="**/snapshot*"), Random(1))

    assert said == "there is no file **/snapshot* to damage"


ROTTEN = Fault("rot-everywhere", "bookies", files="**/journal-*")


def two_copies(tmp_path: Path) -> list[Path]:
    """The same entry in two journals, each at a place of its own, beside what one alone has."""
    entry = Random(7).randbytes(3000)
    for number, name in enumerate(("bookie1", "bookie2")):
        (tmp_path / name).mkdir()
        own = Random(name).randbytes(500 + 4096 * number)
        (tmp_path / name / "journal-1").write_bytes(own + entry + bytes(SIZE))
        (tmp_path / name / "snapshot").write_bytes(entry)
    return [tmp_path / "bookie1", tmp_path / "bookie2"]


def test_no_copy_of_what_rots_everywhere_stays_good(tmp_path: Path) -> None:
    directories = two_copies(tmp_path)
    before = [(one / "journal-1").read_bytes() for one in directories]

    said = rot(directories, ROTTEN, Random(1))

    after = [(one / "journal-1").read_bytes() for one in directories]
    places = [
        next(n for n in range(len(old)) if old[n] != new[n])
        for old, new in zip(before, after, strict=True)
    ]
    assert [bits_that_differ(*pair) for pair in zip(before, after, strict=True)] == [1, 1]
    assert places[1] - places[0] == 4096, "the same byte of the entry"
    assert said == "a bit of the same bytes in 2 places of 2 nodes"
    assert len({(one / "snapshot").read_bytes() for one in directories}) == 1


def test_bytes_that_one_has_alone_do_not_rot(tmp_path: Path) -> None:
    directories = two_copies(tmp_path)
    (directories[1] / "journal-1").write_bytes(b"\x55" * SIZE)
    before = (directories[0] / "journal-1").read_bytes()

    said = rot(directories, ROTTEN, Random(1))

    assert said == "there are no bytes that all of them have in **/journal-*"
    assert (directories[0] / "journal-1").read_bytes() == before
