"""What holds for every test."""

import signal

import pytest
from hypothesis import settings

from tests import extras

# The same examples each time; another thousand, drawn anew: see `examples.py`.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("random", derandomize=False, deadline=None, print_blob=True)
settings.load_profile("same")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test of an extra that is not installed is skipped, by name."""
    if not item.get_closest_marker("extra"):
        return
    if why := extras.missing(item.path.parent.name):
        pytest.skip(why)


def pytest_configure() -> None:
    """Let tests interrupt what they start, also where a shell runs them in its background.

    Such a shell has SIGINT ignored, children inherit that, and Python then installs no handler.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
