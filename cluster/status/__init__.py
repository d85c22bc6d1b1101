"""Report the state of a cluster to people and programs."""
