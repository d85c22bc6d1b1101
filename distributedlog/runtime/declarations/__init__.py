"""Options, metrics, events and health conditions, as each part declares them."""
