"""Journal, index, group commit and reads of entries."""
