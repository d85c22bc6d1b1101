"""Free the space of deleted ledgers: compaction, checkpoints, removal of files."""
