"""Messages between clients and proxies."""
