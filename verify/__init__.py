"""Judges a run, wherever it ran: workload, history, checkers of the guarantees."""
