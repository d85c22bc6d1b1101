"""Options, events, metrics and counters of a bookie."""
