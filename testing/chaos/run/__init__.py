"""One run: faults, report, result."""
