"""Logs as Arrow record batches, for Spark and for programs that read Arrow data."""
