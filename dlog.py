"""The console script `dlog`, before any of it is imported: an interruption in that moment is one, too."""

import sys


def main() -> None:
    """Run `dlog`; exit code 130 without a traceback for Ctrl-C while it is being loaded."""
    try:
        from distributedlog.cli.main import main as run
    except KeyboardInterrupt:
        sys.stderr.write("dlog: interrupted\n")
        sys.exit(130)
    run()
