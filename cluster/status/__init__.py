"""The state of a cluster for people and programs."""
