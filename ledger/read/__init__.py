"""Readers of ledgers."""
