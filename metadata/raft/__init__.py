"""The Raft core, without I/O."""
