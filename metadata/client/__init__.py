"""The client of the metadata quorum."""
