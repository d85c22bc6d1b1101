"""Scenarios, and the interface of the clusters that play them."""
