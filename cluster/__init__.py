"""Processes into a cluster: nodes assembled, started, registered, repaired."""
