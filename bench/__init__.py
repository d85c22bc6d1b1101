"""Benchmarks, one file a question; `dlog bench` is their face."""
