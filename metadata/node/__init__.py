"""A metadata node: its sessions, watches and member of the quorum."""
