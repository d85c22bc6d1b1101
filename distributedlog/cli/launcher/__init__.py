"""The console script `dlog`, before any of it is imported: an interruption in that moment is one, too."""

import _signal as signal  # type: ignore[import-not-found]  # the module `signal` is half a dozen more, each a moment to be interrupted in
import os


def main() -> None:
    """Run `dlog`; exit code 130, and one line, for Ctrl-C while it is being loaded.

    Not by `KeyboardInterrupt`: an import in progress swallows one that comes in a callback of its locks.
    """
    usual = signal.getsignal(signal.SIGINT)
    if callable(usual):  # neither ignored (`nohup`, `&` in a script) nor the system's own
        signal.signal(signal.SIGINT, _end)
    from distributedlog.cli.main import main as run

    try:
        signal.signal(signal.SIGINT, usual)
        run()
    except KeyboardInterrupt:  # outside of what turns it into a line itself
        _end()


def _end(*_: object) -> None:
    """Nothing was begun: there is nothing to tidy."""
    os.write(2, b"dlog: interrupted\n")
    os._exit(130)
