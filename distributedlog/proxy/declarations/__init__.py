"""Options, events and metrics of proxies."""
