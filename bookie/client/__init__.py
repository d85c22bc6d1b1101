"""The client of one bookie."""
