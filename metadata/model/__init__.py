"""Commands, transactions and records of the replicated state."""
