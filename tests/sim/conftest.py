"""What tests of seeds share."""

import gc
import logging
from collections.abc import Iterator

import pytest


@pytest.fixture
def quiet() -> Iterator[None]:
    """Logs of thousands of faults help nobody."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
    gc.collect()
