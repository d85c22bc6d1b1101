"""Background work: event loop in a thread, timers, failures."""
