"""The store of a bookie: its start, and adds to it."""
