"""Registration of a bookie, and state that nodes agree on in the metadata."""
