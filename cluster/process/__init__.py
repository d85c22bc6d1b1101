"""A node as a process: directories, life time, HTTP pages, log lines."""
