"""Sessions of clients, for both kinds of proxies."""
