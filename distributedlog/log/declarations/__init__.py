"""Options, events and codecs of logs."""
