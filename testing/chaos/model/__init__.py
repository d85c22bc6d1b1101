"""Define scenarios, and the interface of the clusters that run them."""
