"""Options, events and configuration of nodes."""
