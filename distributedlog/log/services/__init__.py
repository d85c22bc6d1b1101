"""Shared by the logs of a process: leases, watches, positions, metrics."""
