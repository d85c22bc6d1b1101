"""Store a log, or its past, as Parquet files with a manifest.

The calls of users:

    log_transfer.py    Export a log as an archive, and import an archive as a log.
    cold_tier.py       Append the past of a log to an archive, and read archive and log as one frame.

The archive:

    manifest.py        The manifest: which files hold which records, with digests (pure). Begin here.
    archive_store.py   The location of an archive: a directory or a bucket of an object store.
    archive_folder.py  The objects of an archive, and the one step that changes it.
    parquet_file.py    Write one Parquet file, and read it back verified.
    archive_source.py  The internal data source by which Spark's tasks write and read the files.
"""
