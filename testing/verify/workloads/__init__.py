"""Clients that record their observations."""
