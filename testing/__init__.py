"""Simulator, fault injection, checkers and benchmarks."""
