"""The other nodes of the quorum: connections, membership, bootstrap."""
