"""Resources that the logs of a process share: leases, watches, positions, metrics."""
