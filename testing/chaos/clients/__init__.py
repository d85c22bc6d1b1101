"""Run the client processes of a run."""
