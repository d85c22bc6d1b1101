"""The writer of a ledger: pending adds, ensemble changes, flow control."""
