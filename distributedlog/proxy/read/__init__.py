"""The read proxy."""
