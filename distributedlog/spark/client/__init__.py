"""The client of a Spark process: connection, retries, credentials."""
