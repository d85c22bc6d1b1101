"""Options of source and sink."""
