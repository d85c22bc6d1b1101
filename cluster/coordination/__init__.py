"""Register a bookie, and coordinate nodes through the metadata store."""
