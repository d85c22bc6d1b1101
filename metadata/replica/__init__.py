"""The driver of one Raft core: persists, sends, applies, answers."""
