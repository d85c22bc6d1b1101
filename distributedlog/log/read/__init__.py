"""Readers, and searches for positions."""
