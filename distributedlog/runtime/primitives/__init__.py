"""Small values without I/O: backoff, clocks, buffers."""
