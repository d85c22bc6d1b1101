"""Raft in a simulated world of its own."""
