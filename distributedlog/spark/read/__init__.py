"""The source: plans, offsets and Arrow batches."""
