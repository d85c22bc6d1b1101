"""Run a whole cluster on one machine, as child processes."""
