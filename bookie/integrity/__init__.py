"""Detect lost and corrupt entries: limbo, scrubber, removal of copies."""
