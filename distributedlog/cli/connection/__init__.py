"""The connection of a command to a cluster."""
