"""Injected bugs that seeds must find."""
