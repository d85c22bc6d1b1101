"""Users, grants, capabilities, tokens and quotas."""
