"""Rights on the keys of the metadata, and credentials of users at a node."""
