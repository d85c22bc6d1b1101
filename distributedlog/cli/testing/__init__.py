"""Commands for benchmarks and fault injection."""
