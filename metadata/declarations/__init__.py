"""Options, events and metrics of a metadata node."""
