"""The platform layer, errors and principals, as every part uses them."""
