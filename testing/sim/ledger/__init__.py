"""The ledger protocol in a simulated world of its own."""
