"""Execute one run: faults, report and result."""
