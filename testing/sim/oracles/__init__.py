"""Checks of the behavior of a simulated cluster."""
