"""Programs of the bench as somebody runs them: help that fits a terminal, and an end that is one line.

They start clusters and benches as processes, which a Ctrl-C reaches too: what a traceback of each says, three
screens of it, is that it was interrupted.
"""

import argparse
import re
import shutil
import sys
import textwrap
from collections.abc import Callable

from ..runtime.errors import DistributedLogError

FAILED, INTERRUPTED = 1, 130
"""Exit codes, as those of `dlog`."""
WIDTH_MAX = 100


def run(main: Callable[[], object]) -> None:
    """Run a program to its end. Raises `SystemExit` where it is interrupted or refused."""
    try:
        main()
    except BaseException as error:
        found = list(_leaves(error))
        if any(isinstance(one, KeyboardInterrupt) for one in found):
            print("interrupted", file=sys.stderr)
            raise SystemExit(INTERRUPTED) from None
        ours = [one for one in found if isinstance(one, DistributedLogError)]
        if not ours:
            raise
        print(f"error: {type(ours[0]).__name__} ({ours[0].code}): {ours[0]}", file=sys.stderr)
        raise SystemExit(FAILED) from None


def _leaves(error: BaseException) -> list[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for one in error.exceptions for leaf in _leaves(one)]


def parser_of(module: str, text: str | None) -> argparse.ArgumentParser:
    """A parser whose help says how the module is run, and what its docstring says."""
    return argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=broken(text or "", min(WIDTH_MAX, shutil.get_terminal_size().columns) - 2),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def broken(text: str, width: int) -> str:
    """Paragraphs broken anew; what is indented, commands to be copied, stays as it is."""
    found = []
    for paragraph in re.split(r"\n{2,}", text.strip("\n")):
        indented = paragraph.startswith(" ")
        found.append(paragraph if indented else textwrap.fill(" ".join(paragraph.split()), width))
    return "\n\n".join(found)
