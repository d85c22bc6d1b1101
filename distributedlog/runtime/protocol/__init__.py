"""Frames, handshake, schema, tokens and capabilities on the wire."""
