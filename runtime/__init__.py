"""What every process stands on: the seam to the machine, frames, connections, errors."""
