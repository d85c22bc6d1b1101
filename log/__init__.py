"""The log abstraction: an endless stream of records made of ledgers."""
