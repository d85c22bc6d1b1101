"""Known bugs that seeds must find."""
