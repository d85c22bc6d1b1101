"""Metrics and lag of queries."""
