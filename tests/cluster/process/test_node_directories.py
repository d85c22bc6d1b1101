"""Whose directory `--data` names, before anything is made in it (H6)."""

from pathlib import Path

import pytest

from distributedlog.cluster.declarations.options import BookieNodeConfig, MetadataNodeConfig
from distributedlog.cluster.process.node_directories import open_host
from distributedlog.runtime.interfaces.errors import ForeignData

BOOKIE = BookieNodeConfig("b1", (("127.0.0.1", 1),), {"": ("127.0.0.1", 0)})
METADATA = MetadataNodeConfig("m1", {"m1": ("127.0.0.1", 1)})


@pytest.mark.parametrize(
    ("config", "inside", "says"),
    [
        (BOOKIE, "metadata/FORMAT", "another kind"),
        (METADATA, "journal/FORMAT", "another kind"),
        (BOOKIE, "FORMAT", "its parent directory"),
        (METADATA, "FORMAT", "its parent directory"),
    ],
)
async def test_a_directory_of_another_node_is_refused_and_nothing_made_in_it(
    tmp_path: Path, config: BookieNodeConfig | MetadataNodeConfig, inside: str, says: str
) -> None:
    place = tmp_path / inside
    place.parent.mkdir(exist_ok=True)
    place.write_text("{}")
    before = _tree(tmp_path)

    with pytest.raises(ForeignData, match=says):
        async with open_host(config, tmp_path):
            pass

    assert _tree(tmp_path) == before


def _tree(place: Path) -> list[Path]:
    return sorted(place.rglob("*"))
