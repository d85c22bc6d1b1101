"""Commands for the nodes of a cluster."""
