"""The write proxy."""
