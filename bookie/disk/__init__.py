"""Disk space of a bookie: when it accepts writes, and the reserve on a full disk."""
