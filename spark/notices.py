"""What the package has to say in Spark's Python processes, where nobody has set logging up.

Python's own last resort prints a bare line there, without time, level or name. Where a handler is set up (the
user's driver, a test), nothing is added.
"""

import logging
import sys

NAME = "distributedlog.spark"
FORM = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class Spoken(logging.Handler):
    """To standard error, from WARNING up, unless somebody else listens already."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.setFormatter(logging.Formatter(FORM))

    def emit(self, record: logging.LogRecord) -> None:
        """One line. Standard error is looked up now: Spark's workers replace it."""
        above = logging.getLogger("distributedlog").handlers or logging.getLogger().handlers
        if not above:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()


def speak() -> None:
    """Have warnings said with time, level and name. Idempotent."""
    logger = logging.getLogger(NAME)
    if not any(isinstance(one, Spoken) for one in logger.handlers):
        logger.addHandler(Spoken())
