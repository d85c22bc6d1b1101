"""Check guarantees over recorded observations."""
