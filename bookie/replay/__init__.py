"""Read journal and compacted files at a start."""
