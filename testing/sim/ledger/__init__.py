"""The ledger protocol in a separate simulated world."""
