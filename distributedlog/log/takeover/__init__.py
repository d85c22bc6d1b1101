"""Open a log for writing: lock, recovery of the last segment and producers."""
