"""Names of logs, and the interface that the log layer requires of the ledger layer."""
