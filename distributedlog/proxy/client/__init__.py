"""The client of proxies."""
