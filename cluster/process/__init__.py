"""Run a node as a process: directories, lifetime, HTTP pages and log lines."""
