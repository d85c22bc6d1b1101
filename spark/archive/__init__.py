"""A log, or its past, as Parquet: a place with a manifest, made by exports and by cold tiers.

Begin with `manifest.py`, what an archive is; `store.py` is where it lies, a directory or an object store,
`folder.py` how it changes in one step, `parquet_file.py` one file, `source.py` what Spark's tasks do with
them; `transfer.py` and `history.py` are what users call.
"""
