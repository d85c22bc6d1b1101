"""Commands for users, grants, authorization and certificates."""
