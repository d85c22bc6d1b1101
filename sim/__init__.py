"""The whole cluster in one process, from a seed: virtual time, simulated network and disks."""
