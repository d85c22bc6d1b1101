"""The disk of a metadata node: Raft log, snapshots, backups."""
