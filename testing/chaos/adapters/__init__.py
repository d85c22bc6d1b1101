"""Clusters of processes and of containers, and faults in them."""
