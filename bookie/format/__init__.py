"""The bytes of a bookie: entries, journal, compacted files, index, messages."""
