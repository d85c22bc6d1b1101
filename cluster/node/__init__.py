"""Nodes of each kind, assembled from their parts."""
