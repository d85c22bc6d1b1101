"""Run clusters of processes and of containers, and inject faults into them."""
