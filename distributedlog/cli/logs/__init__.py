"""Commands for logs."""
