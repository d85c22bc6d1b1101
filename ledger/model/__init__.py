"""The metadata of a ledger."""
