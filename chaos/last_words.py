"""What a node's stderr says, in one line."""

import json

BYTES_MAX = 500


def last_words(log: str) -> str:
    """The last error that a node logged, else its last line: why it ended, for a report."""
    found = ""
    for line in log.strip().splitlines():
        try:
            entry = json.loads(line)
            level, message = str(entry["level"]), str(entry["message"])
        except (ValueError, KeyError, TypeError):
            level, message = "error", line.strip()  # the end of a traceback
        if message and (level in ("error", "critical") or not found):
            found = message
    return found[-BYTES_MAX:]
