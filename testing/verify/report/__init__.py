"""Report availability over time, and draw charts."""
