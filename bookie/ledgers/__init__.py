"""The state of ledgers in memory, and requests that wait for it."""
