"""Availability over time, and charts."""
