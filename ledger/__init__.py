"""The client of many bookies: one ledger, one writer, striped, replicated, fenced, recovered."""
