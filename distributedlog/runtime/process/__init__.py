"""The process: signals, memory, descriptors, standard error."""
