"""The cluster that the commands of a file are tried on."""

from collections.abc import Iterator

import pytest

from tests.cli.live import Cluster, running


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running() as found:
        yield found
