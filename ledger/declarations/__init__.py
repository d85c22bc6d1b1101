"""Options and events of ledgers."""
