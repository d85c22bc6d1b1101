"""Shared by all commands: options, output, errors, standard streams."""
