"""Authorize access to metadata keys, and manage credentials of users at a node."""
