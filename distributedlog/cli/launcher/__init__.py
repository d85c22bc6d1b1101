"""Provide the console script `dlog`. It handles Ctrl-C even while the rest is being imported.

No other distribution has a package named `distributedlog_launcher`, so none replaces this one.
"""

import _signal as signal  # type: ignore[import-not-found]  # `signal` imports more modules: time in which Ctrl-C is not handled
import os


def main() -> None:
    """Run `dlog`. Ctrl-C during the import prints one line and ends with exit code 130.

    `KeyboardInterrupt` is not used for it, because an import can swallow one that is raised in its lock
    callback.
    """
    usual = signal.getsignal(signal.SIGINT)
    if callable(usual):  # not ignored (`nohup`, `&` in a script), and not the system default
        signal.signal(signal.SIGINT, _end)
    from .foreign_packages import load_command

    run = load_command()
    try:
        signal.signal(signal.SIGINT, usual)
        run()
    except KeyboardInterrupt:  # outside the part of `run` that reports it
        _end()


def _end(*_: object) -> None:
    """End the process. There is nothing to clean up yet."""
    os.write(2, b"dlog: interrupted\n")
    os._exit(130)
