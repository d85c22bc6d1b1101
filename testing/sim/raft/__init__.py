"""Raft in a separate simulated world."""
