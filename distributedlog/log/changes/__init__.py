"""Rename, seal and truncate a log."""
