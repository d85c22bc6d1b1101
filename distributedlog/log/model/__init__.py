"""The metadata of a log: state, segments, positions, settings."""
