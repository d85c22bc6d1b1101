"""Benchmarks, one file per question."""
