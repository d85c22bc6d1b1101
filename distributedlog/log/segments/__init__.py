"""Segments as units: link, merge, purge, deletion of a log."""
