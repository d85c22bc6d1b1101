"""Writers: validation, batches, segments, producers."""
