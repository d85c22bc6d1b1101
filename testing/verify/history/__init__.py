"""Record the observations of the clients of a run."""
