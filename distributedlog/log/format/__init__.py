"""The bytes of records, entries and producer state."""
