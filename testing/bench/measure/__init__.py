"""Shared by benchmarks: baselines, histograms, reports."""
