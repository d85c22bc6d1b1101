"""Messages between clients and metadata nodes."""
