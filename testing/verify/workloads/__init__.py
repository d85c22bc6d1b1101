"""Run clients that record their observations."""
