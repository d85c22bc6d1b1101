"""Limits of memory, rates and concurrency."""
