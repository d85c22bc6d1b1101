"""What holds for every test."""

import signal


def pytest_configure() -> None:
    """Let tests interrupt what they start, also where a shell runs them in its background.

    Such a shell has SIGINT ignored, children inherit that, and Python then installs no handler.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
