"""Checks of guarantees over recorded observations."""
