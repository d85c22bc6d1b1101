"""Replication of lost, corrupt and misplaced copies of ledgers."""
