"""Simulated time, network, disks and machines."""
