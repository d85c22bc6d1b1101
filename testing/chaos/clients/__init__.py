"""Client processes of a run."""
