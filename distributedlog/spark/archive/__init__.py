"""A log, or its past, as Parquet: a place with a manifest, made by exports and by cold tiers.

Begin with `manifest.py`, what an archive is; `archive_store.py` is where it lies, a directory or an object
store, `archive_folder.py` how it changes in one step, `parquet_file.py` one file, `archive_source.py` what
Spark's tasks do with them; `log_transfer.py` and `cold_tier.py` are what users call.
"""
