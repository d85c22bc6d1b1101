"""Clients of a simulated cluster, and the run of a seed."""
