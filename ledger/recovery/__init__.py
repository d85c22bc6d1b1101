"""Recovery of a ledger without a writer."""
