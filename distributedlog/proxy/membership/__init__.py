"""Registration of proxies, and the proxy of each log."""
