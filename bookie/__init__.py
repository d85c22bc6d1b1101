"""A storage server: a journal that is the store, an index, the protocol of one bookie."""
