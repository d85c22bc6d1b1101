"""Observations of the clients of a run."""
