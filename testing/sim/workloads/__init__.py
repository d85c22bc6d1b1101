"""Clients of a simulated cluster, by seed."""
