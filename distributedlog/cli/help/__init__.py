"""Help and completion."""
