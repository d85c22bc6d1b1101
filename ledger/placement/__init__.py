"""The choice of bookies for an ensemble."""
