"""Files, maps and blocks on disk and in memory."""
