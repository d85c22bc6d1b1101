"""Commands that run nodes, and prepare machines for them."""
