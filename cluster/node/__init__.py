"""Assemble the nodes of each kind from their parts."""
