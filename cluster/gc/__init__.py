"""Retention, and removal of segments and ledgers that no log uses."""
