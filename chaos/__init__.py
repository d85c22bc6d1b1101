"""Faults on real processes and containers, from scenario files, judged by what the clients saw."""
