"""A log, or its past, as Parquet: a directory with a manifest, made by exports and by cold tiers.

Begin with `manifest.py`, what an archive is; `folder.py` is how it changes in one step, `parquet_file.py` one
file, `source.py` what Spark's tasks do with them; `transfer.py` and `history.py` are what users call.
"""
