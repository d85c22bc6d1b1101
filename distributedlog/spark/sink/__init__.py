"""The sink."""
