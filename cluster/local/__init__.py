"""A whole cluster on one machine, as child processes."""
