"""A replicated log service on its own replicated storage cluster, in pure Python."""
