"""The quorum that holds what must be agreed: Raft, a key-value state, a client."""
